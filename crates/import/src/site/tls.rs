//! `ssl_*`: certificates, and requirements for clients.

use crate::nginx::Directive;

use super::Import;
use super::chain::Chain;
use super::issued;
use super::out::{Lines, option, text};

/// Directives that `tls` and the settings beside it stand for.
const NAMES: [&str; 10] = [
    "ssl_certificate",
    "ssl_certificate_key",
    "ssl_password_file",
    "ssl_protocols",
    "ssl_early_data",
    "ssl_client_certificate",
    "ssl_trusted_certificate",
    "ssl_verify_client",
    "ssl_crl",
    "ssl_reject_handshake",
];

/// Those of them that nginx uses only in a server with a certificate of its own.
const OF_CERTIFIED: [&str; 3] = ["ssl_client_certificate", "ssl_trusted_certificate", "ssl_crl"];

/// Whether all servers with TLS have the same settings for it.
pub(super) fn is_one<'d>(servers: &[&'d Directive], http: &Chain<'d>) -> bool {
    let of = |server: &&'d Directive| -> Vec<Vec<&'d str>> {
        let chain = http.inside(server);
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

/// A server's own certificate with its key, as in `tls`; nothing if a CA issues it by ACME.
fn certificate(chain: &Chain<'_>) -> Option<String> {
    if issued::issuer(chain).is_some() {
        return Some(String::new());
    }
    let pair = chain.find("ssl_certificate").zip(chain.find("ssl_certificate_key"));
    let (certificate, key) = pair.map(|(certificate, key)| (certificate.word(0), key.word(0)))?;
    let passwords = option("passwords", chain.word("ssl_password_file"));
    let is_plain = !certificate.contains('$') && !key.contains('$');
    is_plain.then(|| format!("{} {}{passwords}", text(certificate), text(key)))
}

/// Whether a server asks clients for certificates.
fn verifies_clients(server: &Chain<'_>) -> bool {
    !["", "off"].contains(&server.word("ssl_verify_client"))
}

/// By which CAs and revocation lists a server verifies certificates of clients; `None` if it does not.
fn verifiers<'d>(server: &Chain<'d>) -> Option<[&'d str; 3]> {
    let names = ["ssl_client_certificate", "ssl_trusted_certificate", "ssl_crl"];
    verifies_clients(server).then(|| names.map(|name| server.word(name)))
}

impl<'d> Import<'d> {
    /// Early data is on for all servers or for none: a request in it may be a replay.
    fn early_data(&mut self, chain: &Chain<'d>, top: &mut Lines, lines: &mut Lines) {
        let Some(directive) = chain.find("ssl_early_data").filter(|it| it.word(0) == "on") else { return };
        let http = chain.outer();
        let mut servers = http.own().iter().filter(|it| it.name == "server").enumerate();
        let is_on = |(at, server): (usize, &'d Directive)| {
            !self.addresses.speaks_tls(at) || http.inside(server).is_on("ssl_early_data")
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
        let certified = self.certified(chain, at);
        let lost = match certified.and_then(|(pair, of)| Ok((pair, self.clients(chain, &of, lines)?))) {
            Ok((pair, clients)) => return self.tls_settings(&pair, clients, chain, top, lines),
            Err(why) => why,
        };
        self.set_place(server);
        self.lost.push(format!("{}: {lost}", self.place));
        lines.comment(lost);
        if !self.shares_addresses {
            // Clients would get the certificate of another server.
            lines.setting("tls refuse".to_owned());
        }
    }

    /// The certificate that clients get, and its server: this one, or the default server of its address where it has none.
    ///
    /// # Errors
    /// Why there is no such server.
    fn certified(&self, chain: &Chain<'d>, at: usize) -> Result<(String, Chain<'d>), &'static str> {
        if let Some(pair) = certificate(chain) {
            return Ok((pair, chain.clone()));
        }
        let servers = self.default_servers(chain, at).into_iter();
        let mut servers = servers.filter_map(|server| Some((certificate(&server)?, server)));
        let first = servers.next().ok_or("it has TLS, but no ssl_certificate and ssl_certificate_key")?;
        let differs = |(_, other): (String, Chain<'d>)| verifiers(&other) != verifiers(&first.1);
        match verifies_clients(chain) && servers.any(differs) {
            true => Err("the default servers of its addresses verify clients by different CAs"),
            false => Ok(first),
        }
    }

    /// The default servers of a server's addresses with TLS.
    fn default_servers(&self, chain: &Chain<'d>, at: usize) -> Vec<Chain<'d>> {
        let others = self.addresses.defaults_of(at);
        others.into_iter().filter_map(|at| Some(chain.outer().within(other_server(chain, at)?))).collect()
    }

    /// What is required of clients, as in `tls-client-ca`: a server says whether, and the server whose certificate they get says
    /// by which CAs and revocation lists.
    ///
    /// # Errors
    /// Why nginx would serve nobody.
    fn clients(
        &mut self,
        chain: &Chain<'d>,
        of: &Chain<'d>,
        lines: &mut Lines,
    ) -> Result<Option<String>, &'static str> {
        let verify = chain.word("ssl_verify_client");
        let options = match verify {
            "on" => "",
            "optional" => " optional=on",
            "optional_no_ca" => " optional=on unknown=on",
            _ => return Ok(None),
        };
        // `ssl_trusted_certificate` verifies too, but is not sent to clients.
        let authorities = of.find("ssl_client_certificate").or_else(|| of.find("ssl_trusted_certificate"));
        match authorities.filter(|_| verifies_clients(of)) {
            Some(file) => {
                let lists = of.find("ssl_crl");
                lists.into_iter().chain([file]).for_each(|directive| self.fates.carried(directive));
                let (file, crl) = (text(file.word(0)), option("crl", of.word("ssl_crl")));
                Ok(Some(format!("tls-client-ca {file}{options}{crl}")))
            }
            None if verify == "optional_no_ca" => {
                if let Some(list) = of.find("ssl_crl") {
                    let why = "without an ssl_client_certificate no certificate is verified";
                    self.leave(list, why, lines);
                }
                Ok(Some("tls-client-ca any optional=on".to_owned()))
            }
            None if verify == "optional" => {
                lines.comment("ssl_verify_client needs an ssl_client_certificate");
                Ok(None)
            }
            None => Err("ssl_verify_client needs an ssl_client_certificate"),
        }
    }

    fn tls_settings(
        &mut self,
        pair: &str,
        clients: Option<String>,
        chain: &Chain<'d>,
        top: &mut Lines,
        lines: &mut Lines,
    ) {
        // In nginx too, the CAs of a server without a certificate of its own verify no clients.
        let is_certified = certificate(chain).is_some();
        for name in NAMES {
            let Some(directive) = chain.find(name) else { continue };
            match OF_CERTIFIED.contains(&name) && !is_certified {
                true => self.fates.needless(directive),
                false if self.fates.is_known(directive) => {}
                false => self.fates.carried(directive),
            }
        }
        self.early_data(chain, top, lines);
        if let Some(issuer) = issued::issuer(chain).filter(|_| pair.is_empty()) {
            self.issued(issuer, chain, top);
        }
        let lines = if self.shares_addresses { top } else { lines };
        if !pair.is_empty() {
            lines.setting(format!("tls {pair}"));
        }
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
        if let Some(clients) = clients {
            lines.setting(clients);
        }
    }
}
