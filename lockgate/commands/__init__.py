# SPDX-License-Identifier: Apache-2.0
"""The commands about an agent's belongings: each module adds its own to the parser and carries them out."""
