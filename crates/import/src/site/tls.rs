//! `ssl_*`: certificates, and requirements for clients.

use crate::nginx::Directive;

use super::Import;
use super::chain::Chain;
use super::out::{Lines, text};

/// Directives that `tls` and the settings beside it stand for.
const NAMES: [&str; 8] = [
    "ssl_certificate",
    "ssl_certificate_key",
    "ssl_protocols",
    "ssl_early_data",
    "ssl_client_certificate",
    "ssl_trusted_certificate",
    "ssl_verify_client",
    "ssl_reject_handshake",
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
    /// Early data is on for all servers or for none: a request in it may be a replay.
    fn early_data(&mut self, chain: &Chain<'d>, top: &mut Lines, lines: &mut Lines) {
        let Some(directive) = chain.find("ssl_early_data").filter(|it| it.word(0) == "on") else { return };
        let http = chain.outer();
        let mut servers = http.own().iter().filter(|it| it.name == "server").enumerate();
        let is_on = |(at, server): (usize, &'d Directive)| {
            !self.addresses.speaks_tls(at) || http.within(server.inner()).is_on("ssl_early_data")
        };
        match servers.all(is_on) {
            true => top.setting("early-data on".to_owned()),
            false => self.leave(directive, "it is possible only for all servers together", lines),
        }
    }

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
        if chain.is_on("ssl_reject_handshake") {
            for name in NAMES {
                if let Some(directive) = chain.find(name) {
                    self.fates.carried(directive);
                }
            }
            return lines.setting("tls refuse".to_owned());
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
        self.early_data(chain, top, lines);
        let lines = if self.shares_addresses { top } else { lines };
        lines.setting(format!("tls {} {}", text(certificate.word(0)), text(key.word(0))));
        if let Some(directive) = chain.find("ssl_protocols") {
            let protocols = directive.texts();
            match (protocols.contains(&"TLSv1.2"), protocols.contains(&"TLSv1.3")) {
                (false, true) => lines.setting("tls-min-version \"1.3\"".to_owned()),
                (_, true) => {}
                (_, false) => {
                    self.leave(directive, "TLS 1.3 cannot be switched off; 1.2 and 1.3 are used", lines);
                }
            }
        }
        let required = match chain.find("ssl_verify_client").map(|it| (it, it.word(0))) {
            Some((_, "on")) => "",
            Some((_, "optional")) => " optional=on",
            None | Some((_, "off")) => return,
            // Clients without a certificate are served in nginx too, and `$ssl_client_verify` says that they have none.
            Some((directive, _)) => {
                return self.leave(
                    directive,
                    "certificates that are not checked are not supported: no client is asked for one",
                    lines,
                );
            }
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
