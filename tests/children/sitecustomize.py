# SPDX-License-Identifier: Apache-2.0
"""Python imports this at the start of every process that a test starts (`clean_environment` of tests/server/processes).

There a warning is an error, but not where another package gives it about its own code. pyproject.toml says the same to
pytest.
"""

import warnings

OTHERS = r"(?!lockgate\b|tests\b|benchmarks\b|__main__\b)"

for _category in (DeprecationWarning, PendingDeprecationWarning, FutureWarning, SyntaxWarning, UserWarning):
    warnings.filterwarnings("ignore", category=_category, module=OTHERS)
