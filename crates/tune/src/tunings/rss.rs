//! Receive side scaling: how the card distributes connections over its queues.

use crate::card;
use crate::change::Change;
use crate::error::Unknown;
use crate::host::Host;
use crate::served::Served;
use crate::settings::{Kind, RssTable};
use crate::tuning::{About, Advice, Counter, Needs, Risk, Scope, Tuning};

/// The card's indirection table, which selects a queue for each connection.
pub(super) struct Rss;

const ABOUT: About = About {
    name: "rss",
    reason: "a receive queue that gets no connections leaves its CPU idle, and one that gets too many fills its own",
    detail: "The card looks up the hash of a connection in a table of queues. The table is even by default; uneven, somebody \
             changed it, or queues were added later and the driver kept the old table. Before Linux 6.17, a table that ethtool \
             could not write back is not changed.",
    source: "networking/scaling; ethtool(8): -x, -X",
    scope: Scope::Device,
    risk: Risk::Low,
    lost: "connections move to other queues: their packets may arrive out of order for a moment",
    gain_percent: 1.65,
    needs: Needs::Card,
};

impl Tuning for Rss {
    fn about(&self) -> &About {
        &ABOUT
    }

    fn probe(&self, host: &Host, served: &Served) -> Result<String, Unknown> {
        let shares = shares(host, served.card(host)?)?;
        if shares.len() == 1 {
            return Ok("one receive queue".to_owned());
        }
        let entries: u32 = shares.iter().sum();
        let shares: Vec<String> = shares.iter().map(u32::to_string).collect();
        Ok(format!("{entries} entries, by queue {}", shares.join(" ")))
    }

    fn advice(&self, host: &Host, served: &Served) -> Result<Advice, Unknown> {
        let device = served.card(host)?;
        let shares = shares(host, device)?;
        if shares.len() == 1 {
            return Ok(Advice::Fine);
        }
        let (least, most) = (shares.iter().min(), shares.iter().max());
        // If the table's size is not a multiple of the queues, the shares differ by one.
        let is_even = least.zip(most).is_none_or(|(least, most)| most - least <= 1);
        let unused: Vec<String> = shares
            .iter()
            .enumerate()
            .filter(|(_, share)| **share == 0)
            .map(|(at, _)| at.to_string())
            .collect();
        let why = match unused.as_slice() {
            [] => "queues get unequal shares of the connections".to_owned(),
            [one] => format!("queue {one} gets no connections"),
            several => format!("queues {} get no connections", several.join(", ")),
        };
        if is_even {
            return Ok(Advice::Fine);
        }
        let table = RssTable { device: device.to_owned() };
        let before = table.read(host)?;
        let even: Vec<String> =
            (0..table.entries(host)?.len()).map(|entry| (entry % shares.len()).to_string()).collect();
        Ok(match table.can_return(host, &before) {
            Ok(()) => Advice::change(
                format!("{why}: all {} queues in turn", shares.len()),
                vec![Change::text(table, even.join(" "))],
            ),
            Err(_) => Advice::ByHand(format!("{why}: ethtool -X {device} equal {}", shares.len())),
        })
    }

    fn effect(&self, host: &Host, served: &Served) -> Result<Counter, Unknown> {
        let unused = shares(host, served.card(host)?)?.iter().filter(|share| **share == 0).count();
        Ok(Counter { name: "receive queues without connections".to_owned(), value: unused as u64 })
    }
}

/// Larger entries of the table are not queues of any card.
const QUEUES_MAX: usize = 4096;

/// The number of table entries of each receive queue.
fn shares(host: &Host, device: &str) -> Result<Vec<u32>, Unknown> {
    let queues = card::queues(host, device, "rx")?.len();
    if queues <= 1 {
        return Ok(vec![1]);
    }
    let table = RssTable { device: device.to_owned() }.entries(host)?;
    let mut shares = vec![0; queues.min(QUEUES_MAX)];
    for queue in table {
        let share = shares.get_mut(queue as usize);
        *share.ok_or_else(|| Unknown(format!("{device} names queue {queue} and has {queues}")))? += 1;
    }
    Ok(shares)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;
    use crate::netlink::fake;
    use crate::served::ServerSelector;

    fn machine(queues: usize) -> Fake {
        let fake = Fake::with(&[("/proc/net/dev", "a\nb\neth0: 0\n")]);
        (0..queues)
            .for_each(|queue| fake.file(&format!("/sys/class/net/eth0/queues/rx-{queue}/rps_cpus"), "0"));
        fake
    }

    fn stands(fake: &Fake) -> (Result<String, Unknown>, Result<Advice, Unknown>) {
        let host = fake.host();
        let asked = ServerSelector { device: Some("eth0".to_owned()), ..ServerSelector::default() };
        let served = Served::find(&host, &asked).unwrap();
        (Rss.probe(&host, &served), Rss.advice(&host, &served))
    }

    #[test]
    fn the_table_is_read_by_netlink() {
        let fake = machine(2);
        fake.tell_all(fake::card());
        let (value, advice) = stands(&fake);
        assert_eq!(value.as_deref(), Ok("8 entries, by queue 8 0"));
        let table = RssTable { device: "eth0".to_owned() };
        let expected = vec![Change::text(table, "0 1 0 1 0 1 0 1")];
        assert_eq!(advice, Ok(Advice::change("queue 1 gets no connections: all 2 queues in turn", expected)));
    }

    #[test]
    fn the_table_is_read_of_the_program() {
        let head = "RX flow hash indirection table for eth0 with 3 RX ring(s):\n";
        let tail = "RSS hash key:\n6d:5a:56\nRSS hash function:\n    toeplitz: on\n    xor: off\n";
        for (table, value, advice) in [
            ("    0:      0     1     2     0     1     2     0     1\n", "8 entries, by queue 3 3 2", None),
            (
                "    0:      0     0     0     0     1     1     1     2\n",
                "8 entries, by queue 4 3 1",
                Some("queues get unequal shares of the connections: all 3 queues in turn"),
            ),
            (
                "    0:      0     2     1     0     0     0     0     0\n",
                "8 entries, by queue 6 1 1",
                Some("queues get unequal shares of the connections: ethtool -X eth0 equal 3"),
            ),
            (
                "    0:      0     0     0     0\n    4:      0     0     0     0\n",
                "8 entries, by queue 8 0 0",
                Some("queues 1, 2 get no connections: all 3 queues in turn"),
            ),
        ] {
            let fake = machine(3);
            fake.answer("ethtool -x eth0", &format!("{head}{table}{tail}"));
            let (found, advised) = stands(&fake);
            assert_eq!(found.as_deref(), Ok(value));
            assert_eq!(advised.unwrap().text(), advice, "{table}");
        }
    }

    #[test]
    fn unreported_values_are_unknown() {
        let fake = machine(2);
        for (said, expected) in [
            ("", "does not report"),
            (
                "RX flow hash indirection table for eth0 with 2 RX ring(s):\nOperation not supported\n",
                "does not report",
            ),
            ("x\n  0: 7 7\n", "names queue 7 and has 2"),
        ] {
            fake.answer("ethtool -x eth0", said);
            let (Err(Unknown(why)), Err(_)) = stands(&fake) else { panic!("{said}") };
            assert!(why.contains(expected), "{why}");
        }
        assert_eq!(stands(&machine(1)), (Ok("one receive queue".to_owned()), Ok(Advice::Fine)));
    }
}
