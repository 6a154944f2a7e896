//! Secrets and ConfigMaps with certificates, behind references: what a listener shows, and whose certificates it trusts.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flatout_tls::{Certificate, Identity};

use super::certificate::Files;
use super::grant::{Referrer, is_granted};
use crate::kinds::ObjectKey;
use crate::kinds::gateway::ObjectRef;
use crate::objects::Objects;

/// Why a reference leads to nothing: the reason of a condition, and words.
pub(super) type ReferenceFault = (&'static str, String);

/// The object that a reference leads to, if it is of this kind in the core group and may be referred to. `usual_kind` is that of
/// references that name none.
fn resolve(
    from: Referrer<'_>,
    reference: &ObjectRef,
    usual_kind: &str,
    (kind, what, wrong_kind): (&str, &str, &'static str),
    objects: &Objects,
) -> Result<ObjectKey, ReferenceFault> {
    let given = reference.kind.as_deref().unwrap_or(usual_kind);
    if given != kind || reference.group.as_deref().is_some_and(|group| !group.is_empty()) {
        return Err((wrong_kind, format!("{what} of the kind {given}; only {kind}s are supported")));
    }
    let key = ObjectKey::new(reference.namespace.as_deref().unwrap_or(from.namespace), &reference.name);
    if !is_granted(objects, from, kind, &key) {
        let message =
            format!("the {kind} {key} is in another namespace, and no ReferenceGrant there allows it");
        return Err(("RefNotPermitted", message));
    }
    Ok(key)
}

/// The certificate in a Secret, as files. `invalid` is the reason if it cannot be used.
pub(super) fn identity(
    from: Referrer<'_>,
    reference: &ObjectRef,
    invalid: &'static str,
    objects: &Objects,
    files: &mut Files,
) -> Result<Identity, ReferenceFault> {
    let key = resolve(from, reference, "Secret", ("Secret", "a certificate", invalid), objects)?;
    let secret = objects.secrets.get(&key).ok_or_else(|| (invalid, format!("there is no Secret {key}")))?;
    let value = |name: &str| -> Result<Vec<u8>, ReferenceFault> {
        if let Some(text) = secret.string_data.get(name) {
            return Ok(text.clone().into_bytes());
        }
        let text =
            secret.data.get(name).ok_or_else(|| (invalid, format!("the Secret {key} has no {name}")))?;
        let decoded = STANDARD.decode(text.split_whitespace().collect::<String>());
        decoded.map_err(|_| (invalid, format!("the Secret {key}: {name} is not Base64")))
    };
    let (certificate, key_pem) = (value("tls.crt")?, value("tls.key")?);
    Certificate::check(&certificate, &key_pem)
        .map_err(|why| (invalid, format!("the Secret {key}: {why}")))?;
    Ok(Identity::new(files.add("crt", certificate), files.add("key", key_pem)))
}

/// The CA certificates in a ConfigMap (PEM). `wrong_kind` is the reason if the reference leads to something else.
pub(super) fn authorities<'o>(
    from: Referrer<'_>,
    reference: &ObjectRef,
    wrong_kind: &'static str,
    objects: &'o Objects,
) -> Result<&'o str, ReferenceFault> {
    const INVALID: &str = "InvalidCACertificateRef";
    // The standard has no usual kind for them.
    let key = resolve(from, reference, "", ("ConfigMap", "CA certificates", wrong_kind), objects)?;
    let config = objects.config_maps.get(&key).ok_or((INVALID, format!("there is no ConfigMap {key}")))?;
    let text = config.data.authorities.as_deref();
    let text = text.ok_or((INVALID, format!("the ConfigMap {key} has no ca.crt")))?;
    Certificate::check_authorities(text.as_bytes())
        .map_err(|why| (INVALID, format!("the ConfigMap {key}: ca.crt: {why}")))?;
    Ok(text)
}

/// The CA certificates of several references as one text, and the first reference that leads to nothing.
pub(super) fn bundle(
    from: Referrer<'_>,
    references: &[ObjectRef],
    wrong_kind: &'static str,
    objects: &Objects,
) -> (Vec<u8>, Option<ReferenceFault>) {
    let (mut text, mut fault) = (Vec::new(), None);
    for reference in references {
        match authorities(from, reference, wrong_kind, objects) {
            Ok(found) => text.extend_from_slice(format!("{}\n", found.trim_end()).as_bytes()),
            Err(found) => fault = fault.or(Some(found)),
        }
    }
    (text, fault)
}
