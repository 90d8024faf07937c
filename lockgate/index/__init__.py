# SPDX-License-Identifier: Apache-2.0
"""Document indexes: the embedded one, PostgreSQL and Elasticsearch behind one interface."""
