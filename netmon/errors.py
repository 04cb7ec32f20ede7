# SPDX-License-Identifier: Apache-2.0
"""Every error that netmon reports on purpose.

NetmonError                 what was attempted, on what, why it failed, what to do: one line
├── UsageError              the command line or the configuration is wrong
├── UnsupportedError        this machine lacks something (BPF, bcc, privilege, an interface)
├── KernelError             the kernel refused a program, an attachment or a map
├── WireError               a message does not keep the contract of proto/netmon.proto
├── DataError               a dataset, capture or file cannot be read or written
│   └── NoRowsError         a table of a dataset has no row yet
├── CertificateError        a certificate, its key or a token is missing, has expired, or is not what it should be
└── LabError                the testbed could not be built or a part of it failed

Only the command line catches NetmonError; it prints the line and exits with status 1 (2 for UsageError).
"""


class NetmonError(Exception):
    """Base of all of them; its text is one line for the user."""


class UsageError(NetmonError):
    """The command line or the configuration is wrong."""


class UnsupportedError(NetmonError):
    """This machine lacks something that the command needs."""


class KernelError(NetmonError):
    """The kernel refused a program, an attachment or a map."""


class WireError(NetmonError):
    """A message does not keep the contract of proto/netmon.proto."""


class DataError(NetmonError):
    """A dataset, capture or file cannot be read or written."""


class NoRowsError(DataError):
    """A table of a dataset has no row yet."""


class CertificateError(NetmonError):
    """A certificate, its key or a token is missing, has expired, or is not what it should be."""


class LabError(NetmonError):
    """The testbed could not be built, or a part of it failed."""
