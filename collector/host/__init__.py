# SPDX-License-Identifier: Apache-2.0
"""One host's rows, flows, ranks and ledger, from their arrival until they have settled."""
