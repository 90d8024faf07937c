# SPDX-License-Identifier: Apache-2.0
"""What Lockgate costs, beside floors measured in the same run. `python -m benchmarks` runs everything."""
