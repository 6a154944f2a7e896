//! Certificates of clients: which CAs a gateway trusts at its HTTPS listeners, for all ports or for some.

use std::collections::BTreeMap;

use flatout_tls::ClientCertificates;

use super::certificate::Files;
use super::certificate_refs::bundle;
use super::grant::Referrer;
use crate::condition::Condition;
use crate::kinds::gateway::{ClientValidation, Gateway};
use crate::objects::Objects;

/// What a gateway requires of clients.
pub(super) struct ClientRules {
    usual: PortRule,
    of_ports: BTreeMap<u16, PortRule>,
}

/// What is required of clients at a port.
#[derive(Debug, Clone, Default)]
pub(super) struct PortRule {
    /// The CAs of their certificates; none: they are not asked for one.
    pub(super) clients: Option<ClientCertificates>,
    /// What is wrong with it, for the listeners.
    pub(super) faults: Vec<Condition>,
}

impl ClientRules {
    pub(super) fn of(gateway: &Gateway, objects: &Objects, files: &mut Files) -> ClientRules {
        let frontend = gateway.spec.tls.as_ref().and_then(|tls| tls.frontend.clone()).unwrap_or_default();
        let mut rule = |validation: &Option<ClientValidation>| match validation {
            Some(validation) => PortRule::of(gateway, validation, objects, files),
            None => PortRule::default(),
        };
        ClientRules {
            usual: rule(&frontend.default.validation),
            of_ports: frontend.per_port.iter().map(|it| (it.port, rule(&it.tls.validation))).collect(),
        }
    }

    pub(super) fn at(&self, port: u16) -> &PortRule {
        self.of_ports.get(&port).unwrap_or(&self.usual)
    }

    /// The condition of a gateway that accepts invalid certificates anywhere.
    pub(super) fn insecure(&self) -> Option<Condition> {
        let mut all = std::iter::once(&self.usual).chain(self.of_ports.values());
        all.any(PortRule::is_insecure).then(|| Condition {
            name: "InsecureFrontendValidationMode",
            is_true: true,
            reason: "ConfigurationChanged",
            message: "AllowInsecureFallback: clients without a valid certificate are served as well"
                .to_owned(),
        })
    }
}

impl PortRule {
    /// Whether clients without a valid certificate are served as well.
    fn is_insecure(&self) -> bool {
        self.clients.as_ref().is_some_and(|it| it.takes_unknown)
    }

    fn of(
        gateway: &Gateway,
        validation: &ClientValidation,
        objects: &Objects,
        files: &mut Files,
    ) -> PortRule {
        let from = Referrer::of_gateway_api("Gateway", &gateway.metadata.namespace);
        let (text, fault) = bundle(from, &validation.authorities, "InvalidCACertificateKind", objects);
        let mut rule = PortRule::default();
        if let Some((reason, message)) = fault {
            rule.faults.push(Condition::bad("ResolvedRefs", reason, message));
        }
        if text.is_empty() {
            let message = "there is no valid CA certificate for the certificates of clients";
            rule.faults.push(Condition::bad("Accepted", "NoValidCACertificate", message));
            return rule;
        }
        match validation.mode.as_deref().unwrap_or("AllowValidOnly") {
            "AllowValidOnly" => {
                let authorities = files.add("ca", text);
                rule.clients = Some(ClientCertificates {
                    authorities: Some(authorities),
                    required: true,
                    ..ClientCertificates::default()
                });
            }
            "AllowInsecureFallback" => {
                rule.clients =
                    Some(ClientCertificates { takes_unknown: true, ..ClientCertificates::default() });
            }
            other => {
                let message = format!(
                    "got the mode `{other}` of client certificates, need AllowValidOnly or AllowInsecureFallback"
                );
                rule.faults.push(Condition::bad("Accepted", "UnsupportedValue", message));
            }
        }
        rule
    }
}
