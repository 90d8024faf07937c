# SPDX-License-Identifier: Apache-2.0
"""The wire format of OpenAI clients: chat and text completions, models, moderations."""
