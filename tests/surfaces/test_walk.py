# SPDX-License-Identifier: Apache-2.0
"""`make walk`: a request visits few functions and files, and the same ones of `guard/` on every surface."""

from collections.abc import Mapping

import pytest

from tests.surfaces.walk import (
    MASKED,
    SURFACES,
    Function,
    Walk,
    describe_folders,
    describe_totals,
    describe_walk,
    find_differing,
    walk,
)

MAX_FUNCTIONS, MAX_FILES = 340, 45  # of one request; a survey of all its texts is part of it


@pytest.fixture(scope="module")
def walks() -> Mapping[str, Walk]:
    return {name: walk(name) for name in SURFACES}


@pytest.mark.parametrize("name", SURFACES)
def test_a_guarded_stream_is_masked_and_visits_few_functions_and_files(walks: Mapping[str, Walk], name: str) -> None:
    walked = walks[name]
    assert walked.answer == MASKED
    assert len(walked.functions) <= MAX_FUNCTIONS
    assert len(walked.files) <= MAX_FILES


def test_the_surfaces_visit_the_same_functions_of_the_guard(walks: Mapping[str, Walk]) -> None:
    visited = [one for one in walks["agent"].functions if one.folder == "lockgate/guard"]
    differing = find_differing(walks, "lockgate/guard")
    assert len(visited) > len(differing)
    assert differing == {}


def test_a_walk_begins_at_the_socket_and_ends_when_the_request_is_logged(walks: Mapping[str, Walk]) -> None:
    for walked in walks.values():
        assert walked.functions[0] == Function("lockgate/server/connection.py", "Connection.data_received")
        assert walked.functions[-1].folder == "lockgate/telemetry"


def test_the_report_shows_files_under_their_folders_and_counts_the_changes() -> None:
    ways = [("a/x.py", "f"), ("a/x.py", "g"), ("b/y.py", "h"), ("b/z.py", "i"), ("a/x.py", "j")]
    walked = Walk([Function(path, name) for path, name in ways], "")
    _, *lines = describe_walk("agent", walked)
    assert lines == ["a/", "  x.py: f, g", "b/", "  y.py: h", "  z.py: i", "a/", "  x.py: j", ""]
    assert [line.split() for line in describe_totals({"agent": walked})][1] == ["agent", "5", "3", "2"]


def test_the_report_counts_the_functions_of_each_folder() -> None:
    shared, own = Function("guard/x.py", "shared"), Function("api/x.py", "own")
    _, *lines = describe_folders({"one": Walk([shared, own], ""), "two": Walk([shared], "")})
    assert [line.split() for line in lines] == [["api", "1", "0", "0"], ["guard", "1", "1", "1"]]


def test_a_function_that_one_surface_does_not_visit_is_found() -> None:
    both, alone = Function("guard/x.py", "both"), Function("guard/x.py", "alone")
    walks = {"one": Walk([both, alone, Function("gate/x.py", "other")], ""), "two": Walk([both], "")}
    assert find_differing(walks, "guard") == {alone: ["one"]}
