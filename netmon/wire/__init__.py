# SPDX-License-Identifier: Apache-2.0
"""Records as columns on the wire, the generated code, channels (gRPC, JetStream), TLS and identities."""
