# SPDX-License-Identifier: Apache-2.0
"""Names that plugins import and that have moved work for one release longer, with a warning."""

import importlib
import sys

import pytest

from lockgate.gate import values


def test_the_former_name_of_the_values_works_and_warns() -> None:
    sys.modules.pop("lockgate.core.values", None)
    with pytest.warns(DeprecationWarning, match=r"import lockgate\.gate\.values"):
        former = importlib.import_module("lockgate.core.values")
    assert former.Detection is values.Detection
    assert former.TEXT_CONTENTS == values.TEXT_CONTENTS
