# SPDX-License-Identifier: Apache-2.0
"""The messages of foreign gRPC services: .proto files, and the code that `make protos` generates from them.

They have a separate pool: a plugin may have its own copy of the same messages, and a pool accepts a name only once.
"""

from google.protobuf.descriptor_pool import DescriptorPool

POOL = DescriptorPool()
