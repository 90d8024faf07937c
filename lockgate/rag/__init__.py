# SPDX-License-Identifier: Apache-2.0
"""Answers from documents: searches the sources, builds the prompt, streams a cited and guarded answer."""
