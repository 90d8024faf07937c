# SPDX-License-Identifier: Apache-2.0
"""Code and pages use plain words, every class has one name, and modules are named by nouns."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rules.tree import PACKAGE, Module, read_modules, read_texts

WORDS = "house staff desk door bench speaker manner border scribe saying mourn bury whoever whatever somebody nobody"
ENDINGS = {"bench": "(?:es)?", "bury": "(?:ing)?|buries|buried", "mourn": "(?:s|ed|ing)?"}
PHRASES = (
    "refuses? to know",
    "what there is",
    "(?:is|are|was|were|be|been|being) told",
    "tells",
    "of ours",
    r"an? [\w-]+(?: [\w-]+){0,2} of (?:its|their|our|his) own",
)
# A word begins at a capital letter inside a name, too: `PartHouse` has the word `House`.
BEGIN = r"(?:(?<![A-Za-z])|(?<=[a-z])(?=[A-Z]))"
MANNERED = re.compile(
    f"{BEGIN}(?i:"
    + "|".join(
        [f"{word}{ENDINGS.get(word, 's?')}" for word in WORDS.split()]
        + [one.replace(" ", r"[\s#]+") for one in PHRASES]
    )
    + ")(?![a-z])"
)
CHECKED = re.compile(
    r"(?:lockgate/.*\.(?:py|toml|yaml|sql|html|js|md)|(?:docs|benchmarks)/.*\.md"
    r"|examples/.*\.(?:md|py|yaml)|[A-Z]+\.md|mkdocs\.yml)"
)
# Lists of words that detectors look for, prompts of models, documents and their questions, generated code.
WORD_LISTS = (
    "lockgate/demo/documents/",
    "lockgate/detectors/groundedness/words.toml",
    "lockgate/detectors/judge/prompts.toml",
    "lockgate/detectors/toxicity/toxicity.toml",
    "lockgate/index/search_words.toml",
    "examples/evaluation/docs/",
)
# Exact uses that are right: the name of a command, and names that a former release had.
LEGITIMATE = ("make bench", "in_house", "`House`", '"House"')

MODULES = [module for module in read_modules(PACKAGE) if not module.name.endswith("_pb2")]
PLUGIN_TESTS = "lockgate.testing"  # plugins import the fakes for their tests by this name
# Wire formats: their types have the names of the format's own schema.
FORMATS = re.compile(r"lockgate\.(?:protos|compat\.fms)\b")


def find_mannered(text: str) -> Iterator[str]:
    """The mannered words and phrases of a text, each with its line."""
    for legitimate in LEGITIMATE:
        text = text.replace(legitimate, "-" * len(legitimate))
    for found in MANNERED.finditer(text):
        yield f"{text.count(chr(10), 0, found.start()) + 1}: {' '.join(found[0].split())}"


def is_checked(name: str) -> bool:
    """Whether a file's words are the project's: its code and its pages, no lists of words and no documents."""
    is_ours = CHECKED.fullmatch(name) is not None and not name.endswith("_pb2.py")
    return is_ours and not name.startswith(WORD_LISTS)


def find_shared_names(modules: list[Module]) -> dict[str, list[str]]:
    """The class names that several modules define, without leading underscores."""
    places: dict[str, list[str]] = {}
    for module in modules:
        if not FORMATS.match(module.name):
            for node in ast.walk(module.tree):
                if isinstance(node, ast.ClassDef):
                    places.setdefault(node.name.lstrip("_"), []).append(module.name)
    return {name: where for name, where in places.items() if len(where) > 1}


def is_participle(module: str) -> bool:
    """Whether the last word of a module's name ends like a participle."""
    last = module.rpartition(".")[2]
    return last.endswith(("ing", "ed")) and not last.endswith(("string", "setting", "feed", "seed"))


def test_code_and_pages_have_no_mannered_words() -> None:
    found = [f"{name}:{one}" for name, text in read_texts() if is_checked(name) for one in find_mannered(text)]
    assert found == []


def test_no_class_name_is_used_twice() -> None:
    assert find_shared_names(MODULES) == {}


def test_no_module_is_named_by_a_participle() -> None:
    assert [module.name for module in MODULES if is_participle(module.name)] == [PLUGIN_TESTS]


def test_the_lists_of_exceptions_name_what_exists() -> None:
    names = [name for name, _ in read_texts()]
    assert [one for one in WORD_LISTS if not any(name.startswith(one) for name in names)] == []


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("class SharedHouse:", "House"),
        ("self._desk = 1", "desk"),
        ("STAFF = 1", "STAFF"),
        ("# the house\n# and its doors", "house"),
        ("An open door.", "door"),
        ("a bench for it", "bench"),
        ("by other Speakers", "Speakers"),
        ("in the same manner", "manner"),
        ("its Border", "Border"),
        ("Scribe(x)", "Scribe"),
        ("without saying so", "saying"),
        ("def _mourn(child):", "mourn"),
        ("the parent buried it", "buried"),
        ("Whoever asks", "Whoever"),
        ("whatever comes", "whatever"),
        ("SOMEBODY = 1", "SOMEBODY"),
        ('"read by nobody"', "nobody"),
        ("it refuses to\n# know", "refuses to # know"),
        ("it gives what there\nis", "what there is"),
        ("the lane is\n    told so", "is told"),
        ("The log tells", "tells"),
        ("a word of ours", "of ours"),
        ("in a small process of its own", "a small process of its own"),
    ],
)
def test_a_mannered_word_is_found(text: str, word: str) -> None:
    assert [one.partition(": ")[2] for one in find_mannered(text)][:1] == [word]


@pytest.mark.parametrize(
    "text", ["make bench", "household", "benchmark", "outdoors", "staffed", "a process", "its own lane"]
)
def test_plain_words_are_no_fault(text: str) -> None:
    assert list(find_mannered(text)) == []


@pytest.mark.parametrize(
    ("name", "checked"),
    [
        ("lockgate/gate/lanes.py", True),
        ("lockgate/server/page/index.html", True),
        ("lockgate/server/page/style.css", False),
        ("lockgate/protos/fmaas_pb2.py", False),
        ("lockgate/demo/documents/hours/weekend.md", False),
        ("lockgate/agent/label_data/queries.jsonl", False),
        ("tests/rules/test_words.py", False),
    ],
)
def test_the_project_checks_its_words_and_no_lists_of_words(name: str, checked: bool) -> None:
    assert is_checked(name) == checked


def test_a_class_name_that_is_used_twice_is_found(tmp_path: Path) -> None:
    shop = tmp_path / "shop"
    shop.mkdir()
    (shop / "first.py").write_text("class Reply: ...\nclass Answer: ...\n")
    (shop / "second.py").write_text("def f():\n    class _Reply: ...\n")
    assert find_shared_names(read_modules(shop)) == {"Reply": ["shop.first", "shop.second"]}


@pytest.mark.parametrize("name", ["holding", "shared", "api.openai.passing", "rag.answering"])
def test_a_module_named_by_a_participle_is_found(name: str) -> None:
    assert is_participle(f"lockgate.{name}")


@pytest.mark.parametrize("name", ["store_tasks", "embedder", "feed", "shared_metrics"])
def test_a_module_named_by_a_noun_is_no_fault(name: str) -> None:
    assert not is_participle(f"lockgate.{name}")
