//! Servers by the SRV records of a service (RFC 2782): priorities, weights and ports come from DNS.

use std::io;
use std::sync::mpsc;
use std::time::Duration;

use super::file::WEIGHT_MAX;
use crate::changes::SERVERS_MAX;
use crate::control::names::{Names, Resolver};
use crate::plan::{Server, ServerSource, SourcePlace, Tls, Upstream};

/// How long all name servers together have for one lookup.
const LOOKUP_TIME_MAX: Duration = Duration::from_secs(10);

/// How long a start, or a reload with a new service, waits for records.
const START_TIME_MAX: Duration = Duration::from_secs(5);

/// How soon a service is looked up again after a failure.
pub(super) const RETRY: Duration = Duration::from_secs(2);

/// The largest weight in a record is 65,535.
const _: () = assert!(WEIGHT_MAX > u16::MAX as u32);

/// An SRV record.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ServiceRecord {
    pub(crate) priority: u16,
    pub(crate) target: String,
    pub(crate) port: u16,
    pub(crate) weight: u16,
}

/// The service in `srv+http://NAME` or `srv+https://NAME`; `None` for another address.
///
/// # Errors
/// The name cannot be one.
pub fn service(text: &str) -> Option<Result<SourcePlace, String>> {
    let (rest, is_tls) = match (text.strip_prefix("srv+http://"), text.strip_prefix("srv+https://")) {
        (Some(rest), _) => (rest, false),
        (_, Some(rest)) => (rest, true),
        _ => return None,
    };
    let name = rest.strip_suffix('/').unwrap_or(rest);
    let is_label = |label: &str| {
        let is_known = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        (1..=63).contains(&label.len()) && label.bytes().all(is_known)
    };
    let is_name = name.len() <= 253 && name.strip_suffix('.').unwrap_or(name).split('.').all(is_label);
    Some(match name.contains(':') {
        true => Err(format!("got `{text}`: SRV records name the ports")),
        false if !is_name => {
            Err(format!("got `{text}`, need a name such as srv+http://_http._tcp.example.org"))
        }
        false => Ok(SourcePlace::Service { name: name.to_ascii_lowercase(), is_tls }),
    })
}

/// The servers that records name. Those with the least priority are used first, all others are backups.
///
/// # Errors
/// There is none, or one cannot be used.
fn servers(
    mut records: Vec<ServiceRecord>,
    source: &ServerSource,
    upstream: &Upstream,
) -> Result<Vec<Server>, String> {
    if records.len() > SERVERS_MAX {
        return Err(format!("it has {} records, at most {SERVERS_MAX} are allowed", records.len()));
    }
    // Their order in a response changes.
    records.sort();
    let first = records.first().map(|record| record.priority).ok_or("it has no SRV records")?;
    let mut servers: Vec<Server> = Vec::new();
    for record in &records {
        let target = record.target.strip_suffix('.').unwrap_or(&record.target);
        if target.is_empty() {
            return Err("its record says that there is no such service (target `.`)".to_owned());
        }
        let shown = target.escape_debug();
        let refused = |_| format!("a record has the target `{shown}` and the port {}", record.port);
        let server: Server = format!("{target}:{}", record.port).parse().map_err(refused)?;
        if record.port == 0 {
            return Err(refused(String::new()));
        }
        if servers.iter().any(|earlier| earlier.address == server.address) {
            continue;
        }
        servers.push(Server {
            weight: u32::from(record.weight).max(1),
            backup: record.priority != first,
            tls: source.tls_of_service(),
            ..server
        });
    }
    let alone = Upstream { servers: servers.clone(), ..upstream.clone() };
    alone.check().map(|()| servers)
}

impl ServerSource {
    /// TLS to the servers of a service. DNS names them, and may be forged: certificates must have the name of the service's domain,
    /// unless the upstream names another one.
    pub fn tls_of_service(&self) -> Option<Tls> {
        let SourcePlace::Service { name, is_tls: true } = &self.place else { return None };
        let labels: Vec<&str> = name.trim_end_matches('.').split('.').collect();
        let domain: Vec<&str> = labels.into_iter().skip_while(|label| label.starts_with('_')).collect();
        let mut tls = self.tls.clone();
        tls.name = tls.name.or_else(|| (!domain.is_empty()).then(|| domain.join(".")));
        Some(tls)
    }
}

/// Looks a service up. Returns its servers, and when to look it up again.
pub(super) async fn look_up(
    names: &Names,
    source: &ServerSource,
    upstream: &Upstream,
) -> (Result<Vec<Server>, String>, Duration) {
    let SourcePlace::Service { name, .. } = &source.place else {
        return (Err("it is no service".to_owned()), RETRY);
    };
    let looked_up = tokio::time::timeout(LOOKUP_TIME_MAX, names.services(name)).await;
    match looked_up.map_err(|_| late()).and_then(|found| found) {
        Ok((records, ttl)) => match servers(records, source, upstream) {
            Ok(servers) => (Ok(servers), ttl),
            Err(why) => (Err(why), RETRY),
        },
        Err(why) => (Err(why), RETRY),
    }
}

/// Why a lookup has no result.
pub(super) fn late() -> String {
    "no name server responded in time".to_owned()
}

/// What services have now: for a start, which waits for it. Runs on a thread of its own.
pub(super) fn look_up_all(
    resolver: &Resolver,
    services: Vec<(Upstream, ServerSource)>,
) -> Vec<(String, ServerSource, Result<Vec<Server>, String>)> {
    let (results, found) = mpsc::channel();
    let (resolver, asked) = (resolver.clone(), services.clone());
    let look = move || -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let names = std::rc::Rc::new(Names::uncached(&resolver)?);
            let mut tasks = Vec::new();
            for (upstream, source) in asked {
                let (names, results) = (names.clone(), results.clone());
                tasks.push(tokio::task::spawn_local(async move {
                    let (servers, _) = look_up(&names, &source, &upstream).await;
                    let _ = results.send((upstream.name, source, servers));
                }));
            }
            for task in tasks {
                let _ = task.await;
            }
            Ok(())
        })
    };
    let thread = std::thread::Builder::new().name("flatout-lookups".to_owned()).spawn(look);
    let mut all = Vec::new();
    let begun = std::time::Instant::now();
    while thread.is_ok() && all.len() < services.len() {
        let left = START_TIME_MAX.saturating_sub(begun.elapsed());
        match found.recv_timeout(left) {
            Ok(one) => all.push(one),
            Err(_) => break,
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> ServerSource {
        let tls = Tls::default();
        ServerSource { place: service(text).unwrap().unwrap(), tls }
    }

    fn record(priority: u16, weight: u16, target: &str, port: u16) -> ServiceRecord {
        ServiceRecord { priority, target: target.to_owned(), port, weight }
    }

    fn of(records: &[ServiceRecord]) -> Result<Vec<Server>, String> {
        servers(records.to_vec(), &source("srv+http://_http._tcp.a.test"), &Upstream::new("u", Vec::new()))
    }

    #[test]
    fn names_of_services() {
        assert!(service("http://a:1").is_none());
        assert_eq!(
            service("srv+https://_http._tcp.API.test/").unwrap().unwrap(),
            SourcePlace::Service { name: "_http._tcp.api.test".to_owned(), is_tls: true }
        );
        for bad in ["srv+http://", "srv+http://a:80", "srv+http://a/b", "srv+http://a..b", "srv+http://a b"] {
            assert!(service(bad).unwrap().is_err(), "{bad}");
        }
    }

    #[test]
    fn priorities_weights_and_ports_are_those_of_the_records() {
        let found = of(&[
            record(20, 5, "c.a.test.", 3),
            record(10, 0, "B.a.test.", 2),
            record(10, 60000, "a.a.test.", 1),
            record(30, 1, "a.a.test.", 1),
        ]);
        let shown: Vec<_> =
            found.unwrap().iter().map(|it| (it.address.to_string(), it.weight, it.backup)).collect();
        let expected = [("b.a.test:2", 1, false), ("a.a.test:1", 60000, false), ("c.a.test:3", 5, true)];
        let mut expected = expected.map(|(address, weight, backup)| (address.to_owned(), weight, backup));
        expected[..2].sort();
        let mut sorted = shown;
        sorted[..2].sort();
        assert_eq!(sorted, expected);
    }

    #[test]
    fn records_that_cannot_be_used_change_nothing() {
        let good = record(0, 1, "a.test.", 80);
        for (bad, why) in [
            (record(0, 1, ".", 0), "there is no such service"),
            (record(0, 1, "b.test.", 0), "target `b.test` and the port 0"),
            (record(0, 1, "b\\000.test.", 1), "a record has the target"),
            (record(0, 1, &"b".repeat(300), 1), "a record has the target"),
        ] {
            let error = of(&[good.clone(), bad]).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        assert_eq!(of(&[]).unwrap_err(), "it has no SRV records");
        assert!(of(&vec![good; SERVERS_MAX + 1]).unwrap_err().contains("1025 records"));
    }

    #[test]
    fn certificates_have_the_name_of_the_domain() {
        let records = vec![record(0, 1, "evil.example.", 443)];
        let upstream = Upstream::new("u", Vec::new());
        let mut source = source("srv+https://_http._tcp.a.test.");
        let name = |source: &ServerSource| {
            servers(records.clone(), source, &upstream).unwrap()[0].tls.clone().unwrap().name
        };
        assert_eq!(name(&source).as_deref(), Some("a.test"));
        source.tls.name = Some("b.test".to_owned());
        assert_eq!(name(&source).as_deref(), Some("b.test"));
    }
}
