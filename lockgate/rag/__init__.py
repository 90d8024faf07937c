# SPDX-License-Identifier: Apache-2.0
"""Answers from documents: ask the sources, build the prompt, stream a cited and guarded answer."""
