# SPDX-License-Identifier: Apache-2.0
"""The vectors of an index in memory: one matrix, and which passage each of its rows belongs to.

Decides which vectors count: those of one model and one length. Follows the file by what is new and what is gone, so a
document more costs no reading of all others. Refuses to know who makes vectors, and what a passage says.
"""

import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from lockgate.errors import ConfigError
from lockgate.index.index_file import Edition, IndexFile, StoredVectors

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers = NDArray[np.float32]
    Keys = NDArray[np.int64]

_LITTLE_ENDIAN: Final = "<f4"


class Nearness(NamedTuple):
    """How near every passage is to a question; keys rise."""

    keys: "Keys"
    cosines: "Numbers"

    def find_best(self, limit: int) -> list[int]:
        """The nearest passages; of two that are as near, the one with the lower key."""
        import numpy as np

        if len(self.keys) > limit:
            edge = np.partition(self.cosines, -limit)[-limit]
            places = np.flatnonzero(self.cosines >= edge)
        else:
            places = np.arange(len(self.keys))
        order = np.argsort(-self.cosines[places], kind="stable")[:limit]
        return [int(key) for key in self.keys[places[order]]]

    def look_up(self, keys: Iterable[int]) -> dict[int, float]:
        """The cosines of those passages that have a vector."""
        import numpy as np

        found = {}
        for key in keys:
            place = int(np.searchsorted(self.keys, key))
            if place < len(self.keys) and self.keys[place] == key:
                found[key] = float(self.cosines[place])
        return found


class _Rows(NamedTuple):
    """A state of the table. `seen` is the highest number of a document that was read."""

    edition: Edition
    keys: "Keys"
    documents: "Keys"
    matrix: "Numbers"
    seen: int


class VectorTable:
    """The vectors of one model. May be used by several threads."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._lock = threading.Lock()
        self._rows: _Rows | None = None

    def compare(self, file: IndexFile, vector: Sequence[float]) -> Nearness:
        """How near all passages are to a vector of length 1; those with vectors of another length are left out."""
        import numpy as np

        asked = np.asarray(vector, dtype=np.float32)
        with self._lock:
            rows = self._rows = self._follow(file, len(asked))
        return Nearness(rows.keys, rows.matrix @ asked)

    def _follow(self, file: IndexFile, length: int) -> _Rows:
        """The rows as the file has them now."""
        with file.reading():
            edition = file.read_edition()
            rows = self._rows
            if rows is None or rows.edition.file != edition.file or rows.matrix.shape[1] != length:
                rows = _no_rows(edition.file, length)
            if rows.edition == edition:
                return rows
            models, new = file.list_models(), file.read_vectors(rows.seen)
        return self._merge(rows._replace(edition=edition), models, new)

    def _merge(self, rows: _Rows, models: dict[int, str], new: StoredVectors) -> _Rows:
        import numpy as np

        length = rows.matrix.shape[1]
        counts = [
            models[document] == self._model and len(blob) == 4 * length
            for document, blob in zip(new.documents, new.blobs, strict=True)
        ]
        joined = b"".join(blob for blob, is_good in zip(new.blobs, counts, strict=True) if is_good)
        stays = np.isin(rows.documents, list(models))
        return _Rows(
            rows.edition,
            np.concatenate([rows.keys[stays], np.asarray(new.passages, np.int64)[np.asarray(counts, bool)]]),
            np.concatenate([rows.documents[stays], np.asarray(new.documents, np.int64)[np.asarray(counts, bool)]]),
            np.concatenate([rows.matrix[stays], np.frombuffer(joined, _LITTLE_ENDIAN).reshape(-1, length)]),
            max(models, default=0),
        )


def _no_rows(file: str, length: int) -> _Rows:
    import numpy as np

    none = np.zeros(0, np.int64)
    return _Rows(Edition(file, -1), none, none, np.zeros((0, length), np.float32), 0)


def pack_vectors(vectors: Sequence[Sequence[float]]) -> list[bytes]:
    """Vectors as they lie in the file."""
    import numpy as np

    return [np.asarray(vector, dtype=_LITTLE_ENDIAN).tobytes() for vector in vectors]


def check_library() -> None:
    """Say at start, not at the first question, that what we count with is missing."""
    try:
        import numpy as np  # noqa: F401 - only whether it is there
    except ImportError:
        message = "searching by meaning needs numpy: pip install 'lockgate[agent]'"
        raise ConfigError(message, source="index") from None
