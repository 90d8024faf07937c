# SPDX-License-Identifier: Apache-2.0
"""Builds the ONNX graphs that the package ships; the package itself never imports this."""
