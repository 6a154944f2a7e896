//! `acme_issuer` and `acme_certificate` of nginx's module for ACME: certificates that a CA issues.

use crate::nginx::Directive;

use super::Import;
use super::chain::Chain;
use super::out::{Lines, text};

/// What the server decides itself, or has in its state folder.
const NEEDLESS: [&str; 7] = [
    "accept_terms_of_service",
    "account_key",
    "preferred_chain",
    "resolver",
    "resolver_timeout",
    "ssl_verify",
    "state_path",
];

/// The issuer of a server's certificate, if that is issued by ACME and the others have the same one.
pub(super) fn issuer<'d>(chain: &Chain<'d>) -> Option<&'d Directive> {
    let certificate = chain.find("acme_certificate")?;
    if (chain.word("ssl_certificate"), chain.word("ssl_certificate_key"))
        != ("$acme_certificate", "$acme_certificate_key")
        || names(chain, certificate).is_empty()
    {
        return None;
    }
    // Here all certificates come from one CA.
    let servers = chain.levels().iter().rev().nth(1)?.iter().filter(|it| it.name == "server");
    let mut others = servers.flat_map(|server| server.inner()).filter(|it| it.name == "acme_certificate");
    if others.any(|other| other.word(0) != certificate.word(0)) {
        return None;
    }
    chain.find_all("acme_issuer").into_iter().find(|issuer| issuer.word(0) == certificate.word(0))
}

/// The names in a certificate: those that are given, or those of the server.
fn names<'d>(chain: &Chain<'d>, certificate: &'d Directive) -> Vec<&'d str> {
    let given = certificate.texts().into_iter().skip(1).filter(|text| !text.contains('='));
    let given: Vec<&str> = given.collect();
    let is_plain = |name: &&str| {
        name.contains('.') && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte))
    };
    let of_server = || chain.own().iter().filter(|it| it.name == "server_name").flat_map(Directive::texts);
    match given.is_empty() {
        true => of_server().filter(|name| is_plain(name) && !name.starts_with('.')).collect(),
        // A certificate with a wildcard needs the challenge dns-01.
        false if given.iter().all(is_plain) => given,
        false => Vec::new(),
    }
}

impl<'d> Import<'d> {
    /// Writes the domains of a server and its issuer.
    pub(super) fn issued(&mut self, issuer: &'d Directive, chain: &Chain<'d>, top: &mut Lines) {
        let Some(certificate) = chain.find("acme_certificate") else { return };
        self.fates.carried(certificate);
        for name in names(chain, certificate) {
            top.setting(format!("domain {}", text(name)));
        }
        // nginx does not redirect to HTTPS because of it.
        top.setting("https-redirect off".to_owned());
        if self.fates.is_known(issuer) {
            return;
        }
        self.fates.carried(issuer);
        for setting in issuer.inner() {
            let given = setting.word(0);
            let line = match setting.name.as_str() {
                "uri" => format!("acme-directory {}", text(given)),
                "contact" => format!("acme-contact {}", text(given.trim_start_matches("mailto:"))),
                "ssl_trusted_certificate" => format!("acme-ca {}", text(given)),
                "profile" => format!("acme-profile {}", text(given)),
                "challenge" if given == "tls-alpn" => "acme-challenge \"tls-alpn-01\"".to_owned(),
                "challenge" if given == "http" => "acme-challenge \"http-01\"".to_owned(),
                name if NEEDLESS.contains(&name) => {
                    self.fates.needless(setting);
                    continue;
                }
                _ => {
                    self.leave(setting, "there is no equivalent", top);
                    continue;
                }
            };
            self.fates.carried(setting);
            top.setting(line);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::site::written::imported;

    const ISSUER: &str = "acme_shared_zone zone=a:1M; acme_issuer ca { uri https://ca.test/directory; contact mailto:a@b.test; state_path /s; \
        accept_terms_of_service; challenge http; }";

    fn server(given: &str) -> String {
        format!(
            "server {{ listen 443 ssl; server_name a.test www.a.test; {given}; ssl_certificate $acme_certificate; \
             ssl_certificate_key $acme_certificate_key; location / {{ proxy_pass http://a:1; }} }}"
        )
    }

    #[test]
    fn certificates_are_issued_by_acme() {
        let plain = "server { listen 80; server_name a.test; return 301 https://$host$request_uri; }";
        let site =
            imported(&format!("http {{ {ISSUER} {plain} {} }}", server("acme_certificate ca key=rsa:4096")))
                .text;
        for expected in [
            "domain \"a.test\"\n",
            "domain \"www.a.test\"\n",
            "https-redirect off\n",
            "acme-directory \"https://ca.test/directory\"\n",
            "acme-contact \"a@b.test\"\n",
            "acme-challenge \"http-01\"\n",
            "proxy \"http://a:1\"",
        ] {
            assert!(site.contains(expected), "{expected}\n{site}");
        }
        assert!(
            !site.contains("not converted:") && !site.contains("501") && !site.contains("tls "),
            "{site}"
        );
        let site = imported(&format!("http {{ {ISSUER} {} }}", server("acme_certificate ca b.test"))).text;
        assert!(site.contains("domain \"b.test\"") && !site.contains("domain \"a.test\""), "{site}");
    }

    /// Clients must not get the certificate of another server.
    #[test]
    fn certificates_that_cannot_be_issued_are_missing() {
        let other = "acme_issuer other { uri https://other.test/; }";
        for servers in [
            server("acme_certificate nobody"),
            server("acme_certificate ca *.a.test"),
            [server("acme_certificate ca"), server("acme_certificate other").replace("a.test", "b.test")]
                .concat(),
        ] {
            let site = imported(&format!("http {{ {ISSUER} {other} {servers} }}"));
            assert!(!site.unserved.is_empty() && !site.text.contains("domain "), "{servers}\n{}", site.text);
        }
    }
}
