# SPDX-License-Identifier: Apache-2.0
"""The messages of foreign gRPC services: .proto files, and the code that `make protos` makes of them.

They live in a pool of their own: a plugin may bring its own copy of the same messages, and in one pool two copies of a
name cannot be. Who calls whom, and when, is not known here.
"""

from google.protobuf.descriptor_pool import DescriptorPool

POOL = DescriptorPool()
