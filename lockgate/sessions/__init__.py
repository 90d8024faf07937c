# SPDX-License-Identifier: Apache-2.0
"""Session stores: SQLite and PostgreSQL behind one interface."""
