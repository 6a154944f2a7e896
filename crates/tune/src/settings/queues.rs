//! The settings of a card that it may lose when its queues or rings are changed: drivers make their queues anew then,
//! free the interrupts and request others, and reset the table of receive queues.
//!
//! # Source
//! `netif_set_real_num_tx_queues` resets the masks of queues that are removed; `net_rx_queue_update_kobjects` removes their
//! files; a driver's `set_channels` and `set_ringparam` (ice, mlx5, virtio-net) free interrupts, and set the table.

use super::{FileSetting, Interrupt, RssTable, Setting};
use crate::card;
use crate::host::Host;

/// Files of a transmit queue, and of a receive queue.
const TRANSMIT: &[&str] = &[
    "xps_cpus",
    "xps_rxqs",
    "tx_maxrate",
    "byte_queue_limits/limit_max",
    "byte_queue_limits/limit_min",
    "byte_queue_limits/hold_time",
];
const RECEIVE: &[&str] = &["rps_cpus", "rps_flow_cnt"];

/// Those that this card has, the table first: masks name the queues that it needs.
pub(super) fn of(host: &Host, device: &str) -> Vec<Setting> {
    let mut all = vec![Setting::RssTable(RssTable { device: device.to_owned() })];
    for (direction, names) in [("tx", TRANSMIT), ("rx", RECEIVE)] {
        // A card without these folders has nothing to lose.
        for queue in card::queues(host, device, direction).unwrap_or_default() {
            let files = names.iter().map(|name| Setting::File(FileSetting::at(format!("{queue}/{name}"))));
            all.extend(files);
        }
    }
    let interrupts = card::interrupts(host, device).unwrap_or_default();
    all.extend(interrupts.into_iter().map(|(number, name)| Setting::Interrupt(Interrupt { name, number })));
    all
}
