//! `ssl_*`: certificates, and requirements for clients.

use crate::nginx::Directive;

use super::Import;
use super::chain::Chain;
use super::out::{Lines, text};

/// Directives that `tls` and the settings beside it stand for.
const NAMES: [&str; 7] = [
    "ssl_certificate",
    "ssl_certificate_key",
    "ssl_protocols",
    "ssl_early_data",
    "ssl_client_certificate",
    "ssl_trusted_certificate",
    "ssl_verify_client",
];

/// Whether all servers with TLS have the same settings for it.
pub(super) fn is_one<'d>(servers: &[&'d Directive], http: &Chain<'d>) -> bool {
    let of = |server: &&'d Directive| -> Vec<Vec<&'d str>> {
        let chain = http.within(server.inner());
        NAMES.iter().map(|name| chain.find(name).map(Directive::texts).unwrap_or_default()).collect()
    };
    let mut all = servers.iter().map(of);
    let first = all.next();
    all.all(|other| Some(other) == first)
}

/// The block of the server at this place, among those beside the server of a chain.
fn other_server<'d>(chain: &Chain<'d>, at: usize) -> Option<&'d [Directive]> {
    let servers = chain.outer();
    let mut servers = servers.own().iter().filter(|directive| directive.name == "server");
    servers.nth(at).map(Directive::inner)
}

impl<'d> Import<'d> {
    /// Writes the TLS settings of a server: at the top of the file if all servers have the same, otherwise in its site.
    pub(super) fn tls(
        &mut self,
        server: &'d Directive,
        at: usize,
        chain: &Chain<'d>,
        top: &mut Lines,
        lines: &mut Lines,
    ) {
        if !self.addresses.speaks_tls(at) {
            return;
        }
        let pair_of = |chain: &Chain<'d>| {
            let pair = chain.find("ssl_certificate").zip(chain.find("ssl_certificate_key"));
            pair.filter(|(certificate, key)| !certificate.word(0).contains('$') && !key.word(0).contains('$'))
        };
        // Clients get that of the address's default server where a server has none.
        let defaults = || {
            let others = self.addresses.defaults_of(at);
            others.into_iter().find_map(|other| pair_of(&chain.outer().within(other_server(chain, other)?)))
        };
        let Some((certificate, key)) = pair_of(chain).or_else(defaults) else {
            self.set_place(server);
            self.lost
                .push(format!("{}: it has TLS, but no ssl_certificate and ssl_certificate_key", self.place));
            return lines.comment("it has TLS, but no ssl_certificate and ssl_certificate_key");
        };
        for name in NAMES {
            if let Some(directive) = chain.find(name) {
                self.fates.carried(directive);
            }
        }
        if chain.word("ssl_early_data") == "on" {
            top.setting("early-data on".to_owned());
        }
        let lines = if self.shares_addresses { top } else { lines };
        lines.setting(format!("tls {} {}", text(certificate.word(0)), text(key.word(0))));
        if let Some(protocols) = chain.find("ssl_protocols").map(Directive::texts)
            && !protocols.contains(&"TLSv1.2")
            && protocols.contains(&"TLSv1.3")
        {
            lines.setting("tls-min-version \"1.3\"".to_owned());
        }
        let required = match chain.word("ssl_verify_client") {
            "on" => "",
            "optional" => " optional=on",
            _ => return,
        };
        // `ssl_trusted_certificate` verifies too, but is not sent to clients.
        match chain.find("ssl_client_certificate").or_else(|| chain.find("ssl_trusted_certificate")) {
            Some(authorities) => {
                self.fates.carried(authorities);
                lines.setting(format!("tls-client-ca {}{required}", text(authorities.word(0))));
            }
            None => lines.comment("ssl_verify_client needs an ssl_client_certificate"),
        }
    }
}
