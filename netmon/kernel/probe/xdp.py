# SPDX-License-Identifier: Apache-2.0
"""What the kernel says its drivers do with XDP programs: its netdev family of generic netlink (Linux 6.3).

Asked, never tried: attaching a program may reset a NIC's queues.
"""

import contextlib
from dataclasses import dataclass

from pyroute2.netlink import NLM_F_DUMP, NLM_F_REQUEST, genlmsg
from pyroute2.netlink.generic import AsyncGenericNetlinkSocket, GenericNetlinkSocket

_FAMILY, _DEV_GET = "netdev", 1
_BASIC, _HW_OFFLOAD, _RX_SG = 1 << 0, 1 << 4, 1 << 5  # enum netdev_xdp_act


@dataclass(frozen=True)
class XdpSupport:
    """What one driver does. Generic XDP, which runs on finished sk_buffs, is there on every interface."""

    native: bool
    offload: bool  # programs can run on the NIC itself
    fragments: bool  # native programs are given frames that do not fit into one page


class _Device(genlmsg):  # type: ignore[misc]  # pyroute2 has no types
    nla_map = ((1, "NETDEV_A_DEV_IFINDEX", "uint32"), (3, "NETDEV_A_DEV_XDP_FEATURES", "uint64"))


class _QuietAsyncSocket(AsyncGenericNetlinkSocket):  # type: ignore[misc]
    module_err_level = "debug"  # that there is no such family is an answer, not an error to be logged


class _QuietSocket(GenericNetlinkSocket):  # type: ignore[misc]
    async_class = _QuietAsyncSocket


def xdp_support() -> dict[int, XdpSupport]:
    """That of every interface of the caller's network namespace, by index; empty where the kernel does not report.

    Needs no privilege.
    """
    found = {}
    with contextlib.suppress(Exception), _QuietSocket() as netlink:  # absent on old kernels, in many ways
        netlink.bind(_FAMILY, _Device)
        request = _Device()
        request["cmd"], request["version"] = _DEV_GET, 1
        for device in netlink.nlm_request(request, msg_type=netlink.prid, msg_flags=NLM_F_REQUEST | NLM_F_DUMP):
            features = device.get_attr("NETDEV_A_DEV_XDP_FEATURES")
            if features is not None:
                found[int(device.get_attr("NETDEV_A_DEV_IFINDEX"))] = _support(features)
    return found


def _support(features: int) -> XdpSupport:
    return XdpSupport(bool(features & _BASIC), bool(features & _HW_OFFLOAD), bool(features & _RX_SG))
