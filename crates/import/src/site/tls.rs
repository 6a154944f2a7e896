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
        let (Some(certificate), Some(key)) =
            (chain.find("ssl_certificate"), chain.find("ssl_certificate_key"))
        else {
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
