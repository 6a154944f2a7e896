//! Settings of automatic certificates.

use flatout_certify::acme::{self, Way};

use crate::serve::parse;
use crate::serve::setting::{Change, SERVERS, ServeSetting};

pub(in crate::serve) const ACME: &[ServeSetting] = &[
    ServeSetting {
        name: "domain",
        value: "DOMAIN",
        default: "none",
        help: "get a certificate for this domain from a CA (ACME), renew it, and serve TLS; can be repeated; without listen, ports \
               443 and 80 are used; using it accepts the CA's terms of service",
        set: |options, given| {
            let domain = acme::parse_domain(given.text())?;
            if options.issue.domains.len() == acme::DOMAINS_MAX {
                return Err(format!("more than {} domains", acme::DOMAINS_MAX).into());
            }
            if !options.issue.domains.contains(&domain) {
                options.issue.domains.push(domain);
            }
            Ok(())
        },
        is_list: true,
        change: Change::NotFirstNorLast(|plan| format!("{:?}", plan.state.is_some())),
        ..SERVERS
    },
    ServeSetting {
        name: "acme-directory",
        value: "URL",
        default: acme::DIRECTORY_DEFAULT,
        help: "the directory of the CA; for tests that of Let's Encrypt's staging environment",
        set: |options, given| {
            let url = given.text();
            if !url.starts_with("https://") || url.len() == "https://".len() {
                return Err(format!("got `{url}`, need an address with https://").into());
            }
            options.issue.directory = url.to_owned();
            Ok(())
        },
        ..SERVERS
    },
    ServeSetting {
        name: "acme-contact",
        value: "EMAIL",
        default: "none",
        help: "a contact address of the account, for messages from the CA; sent when the account is created; can be repeated",
        set: |options, given| {
            let address = given.text();
            let is_address =
                address.split_once('@').is_some_and(|(name, host)| !name.is_empty() && !host.is_empty());
            if !is_address
                || address
                    .contains(|char: char| char.is_whitespace() || char.is_control() || ",?".contains(char))
            {
                return Err(format!("got `{address}`, need an address such as admin@example.org").into());
            }
            options.issue.contact.push(address.to_owned());
            Ok(())
        },
        is_list: true,
        ..SERVERS
    },
    ServeSetting {
        name: "acme-ca",
        value: "FILE",
        default: "the system's",
        help: "CA certificates to verify the ACME server with (PEM), for a private CA",
        set: |options, given| {
            options.issue.authorities = Some(options.path(given.text()));
            Ok(())
        },
        ..SERVERS
    },
    ServeSetting {
        name: "acme-challenge",
        value: "http-01|tls-alpn-01|dns-01",
        default: "http-01 where a listener has no TLS, then tls-alpn-01; dns-01 with acme-dns-hook",
        help: "how the CA checks a domain; can be repeated, the next one is tried after a failure",
        set: |options, given| {
            let way = match given.text() {
                "dns-01" => Way::Dns,
                "tls-alpn-01" => Way::TlsAlpn,
                _ => Way::Http,
            };
            if !options.issue.ways.contains(&way) {
                options.issue.ways.push(way);
            }
            Ok(())
        },
        is_list: true,
        ..SERVERS
    },
    ServeSetting {
        name: "acme-dns-hook",
        value: "FILE",
        default: "none",
        help: "a program that sets DNS records for dns-01: it is run as FILE set NAME VALUE and FILE clear NAME VALUE, and returns \
               when the TXT record can be seen",
        set: |options, given| {
            options.issue.hook = Some(options.path(given.text()));
            Ok(())
        },
        ..SERVERS
    },
    ServeSetting {
        name: "acme-profile",
        value: "NAME",
        default: "the CA's",
        help: "the certificate profile, if the CA offers several, such as shortlived for six days",
        set: |options, given| {
            options.issue.profile = Some(parse::field_value(given.text())?.to_owned());
            Ok(())
        },
        ..SERVERS
    },
    ServeSetting {
        name: "state",
        value: "DIR",
        default: "systemd's StateDirectory; with domain or tls local /var/lib/flatout/serve for root, else \
                  ~/.local/state/flatout",
        help: "where certificates, the CA's account and the keys of TLS sessions are kept; servers may share one",
        set: |options, given| {
            options.issue.state = Some(options.path(given.text()));
            Ok(())
        },
        change: Change::Restart(|plan| format!("{:?}", plan.state)),
        ..SERVERS
    },
];
