//! `ssl_*`: certificates, and requirements for clients.

use crate::nginx::Directive;

use super::Import;
use super::chain::Chain;
use super::out::{Lines, text};

/// Directives that `tls` and the settings beside it stand for.
const NAMES: [&str; 6] = [
    "ssl_certificate",
    "ssl_certificate_key",
    "ssl_protocols",
    "ssl_early_data",
    "ssl_client_certificate",
    "ssl_verify_client",
];

/// Whether a server of this block uses TLS.
pub(super) fn is_spoken(http: &[Directive]) -> bool {
    http.iter().filter(|directive| directive.name == "server").any(speaks)
}

/// Whether a server of this block serves anything without TLS.
pub(super) fn serves_plainly(http: &[Directive]) -> bool {
    let listens_plainly = |server: &&Directive| {
        let mut listens = server.inner().iter().filter(|directive| directive.name == "listen");
        !speaks(server) || listens.any(|listen| !listen.texts().contains(&"ssl"))
    };
    let servers = http.iter().filter(|directive| directive.name == "server");
    servers.filter(listens_plainly).any(|server| !only_redirects(server))
}

/// Whether a server listens with TLS.
pub(super) fn speaks(server: &Directive) -> bool {
    let listens = server.inner().iter().filter(|directive| directive.name == "listen");
    listens.map(Directive::texts).any(|texts| texts.contains(&"ssl"))
}

/// Whether a server only redirects plain HTTP to the same URL over HTTPS.
pub(super) fn only_redirects(server: &Directive) -> bool {
    let is_target = |target: &str| {
        ["https://$host$request_uri", "https://$http_host$request_uri", "https://$server_name$request_uri"]
            .contains(&target)
    };
    let is_redirect = |directive: &Directive| match directive.name.as_str() {
        "return" => {
            matches!(directive.texts()[..], ["301" | "302" | "307" | "308", target] if is_target(target))
        }
        "listen" | "server_name" => true,
        _ => false,
    };
    !speaks(server)
        && server.inner().iter().all(is_redirect)
        && server.inner().iter().any(|directive| directive.name == "return")
}

impl<'d> Import<'d> {
    /// Writes the certificate of a TLS server; all servers share the other settings.
    pub(super) fn tls(&mut self, server: &'d Directive, chain: &Chain<'d>, top: &mut Lines) {
        if !speaks(server) {
            return;
        }
        let (Some(certificate), Some(key)) =
            (chain.find("ssl_certificate"), chain.find("ssl_certificate_key"))
        else {
            return top.comment("a server with TLS has no ssl_certificate and ssl_certificate_key");
        };
        for name in NAMES {
            if let Some(directive) = chain.find(name) {
                self.fates.carried(directive);
            }
        }
        top.setting(format!("tls {} {}", text(certificate.word(0)), text(key.word(0))));
        if let Some(protocols) = chain.find("ssl_protocols").map(Directive::texts)
            && !protocols.contains(&"TLSv1.2")
            && protocols.contains(&"TLSv1.3")
        {
            top.setting("tls-min-version \"1.3\"".to_owned());
        }
        if chain.word("ssl_early_data") == "on" {
            top.setting("early-data on".to_owned());
        }
        if let Some(authorities) = chain.find("ssl_client_certificate") {
            let optional = match chain.word("ssl_verify_client") {
                "on" => "",
                "optional" => " optional=on",
                _ => return,
            };
            top.setting(format!("tls-client-ca {}{optional}", text(authorities.word(0))));
        }
    }
}
