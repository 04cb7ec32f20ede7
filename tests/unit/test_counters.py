# SPDX-License-Identifier: Apache-2.0
"""NIC counters: from sysfs as the kernel's documentation describes it, and of this machine."""

from pathlib import Path

from netmon.kernel.nic import _ETHTOOL, MOST, NicCounters, chosen


def write(root: Path, **files: int) -> None:
    root.mkdir(parents=True)
    for name, value in files.items():
        (root / name).write_text(f"{value}\n")


def test_an_rdma_port_is_read_in_bytes(tmp_path: Path) -> None:
    port = tmp_path / "class/infiniband/mlx5_0/ports/1"
    write(port / "counters", port_xmit_data=1000, port_rcv_data=2, port_xmit_packets=7, symbol_error=0, VL15_dropped=0)
    write(port / "hw_counters", np_cnp_sent=5, rp_cnp_handled=6, out_of_sequence=1, lifespan=10, rx_write_requests=9)
    (port / "counters/unreadable_bytes").mkdir()
    (sample,) = NicCounters(tmp_path).read([])
    assert (sample.device, sample.source) == ("mlx5_0/1", "rdma")
    counters = dict(zip(sample.names, sample.values, strict=True))
    assert counters["port_xmit_bytes"] == 4000
    assert counters["port_rcv_bytes"] == 8
    assert counters.items() >= {"port_xmit_packets": 7, "np_cnp_sent": 5, "out_of_sequence": 1}.items()
    assert not counters.keys() & {"lifespan", "port_xmit_data", "unreadable_bytes", "rx_write_requests"}


def test_an_interface_has_the_kernels_counters(tmp_path: Path) -> None:
    write(tmp_path / "class/net/eth9/statistics", rx_bytes=10, tx_bytes=20, rx_dropped=1, multicast=3)
    samples = NicCounters(tmp_path).read(["eth9", "eth10"])
    assert [(sample.device, sample.source) for sample in samples] == [("eth9", "sysfs")]
    assert dict(zip(samples[0].names, samples[0].values, strict=True)) == {
        "rx_bytes": 10,
        "tx_bytes": 20,
        "rx_dropped": 1,
    }


def test_of_a_drivers_counters_those_are_kept_that_say_something() -> None:
    queues = [f"rx{queue}_{what}" for queue in range(64) for what in ("packets", "bytes", "xdp_drop", "cache_reuse")]
    names = [
        *queues,
        *("rx_bytes_phy", "tx_bytes", "rx_65_to_127_bytes_phy", "rx_vport_rdma_unicast_bytes", "rx_out_of_buffer"),
        *("rx_ecn_mark", "rx_prio0_pause", "rx_prio3_bytes", "tx_queue_stopped", "rx_steer_missed_packets"),
        *("bw_in_allowance_exceeded", "conntrack_allowance_available", "rx_pfc_frames"),
    ]
    kept = [names[place] for place in chosen(names, _ETHTOOL)]
    assert kept[:3] == ["rx_bytes_phy", "tx_bytes", "rx_vport_rdma_unicast_bytes"]
    assert set(kept[3:]) == {
        *("rx_out_of_buffer", "rx_steer_missed_packets", "rx_ecn_mark", "rx_prio0_pause", "rx_prio3_bytes"),
        *("bw_in_allowance_exceeded", "rx_pfc_frames"),
    }
    assert len(chosen([f"error_{chr(97 + n // 26)}{chr(97 + n % 26)}" for n in range(300)], _ETHTOOL)) == MOST


def test_the_loopback_of_this_machine_counts() -> None:
    samples = {sample.source: sample for sample in NicCounters().read(["lo"])}
    assert "rx_bytes" in samples["sysfs"].names
    assert samples["sysfs"].values[0] >= 0
