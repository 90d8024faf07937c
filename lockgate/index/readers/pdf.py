# SPDX-License-Identifier: Apache-2.0
"""PDF becomes pages of text, with pypdf.

Decides how much is read and what each failure is called. A page is read where its text can be had; pictures of text are
not. Refuses to know what is done with the text.
"""

import io
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from lockgate.errors import ConfigError

if TYPE_CHECKING:
    from pypdf import PdfReader

MAX_PAGES: Final = 5_000


class _Refused(ValueError):
    """Words of ours; the library raises ValueError too."""


def read_pdf(raw: bytes) -> tuple[str, Sequence[str]]:
    """The title, which may be empty, and the text of each page; raises ValueError if it cannot be read."""
    try:
        import pypdf
    except ImportError:
        raise ConfigError("PDF files need pypdf: pip install 'lockgate[agent]'", source="index") from None
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # what it cannot read is told by us, in one line
    try:
        return _read(pypdf.PdfReader(io.BytesIO(raw)))
    except _Refused:
        raise
    except Exception as error:  # a damaged file makes it raise nearly anything
        raise ValueError("it is damaged or no PDF") from error


def _read(reader: "PdfReader") -> tuple[str, Sequence[str]]:
    if reader.is_encrypted and not _unlocks(reader):
        raise _Refused("it is encrypted")
    if len(reader.pages) > MAX_PAGES:
        raise _Refused(f"it has more than {MAX_PAGES} pages")
    metadata = reader.metadata
    title = metadata.title if metadata is not None else None
    return title or "", [page.extract_text() for page in reader.pages]


def _unlocks(reader: "PdfReader") -> bool:
    """Whether anybody may read it: many files are encrypted with an empty password."""
    try:
        return bool(reader.decrypt(""))
    except Exception:  # noqa: BLE001 - also that a cipher is not there
        return False
