//! The service that is asked about each request of an Ingress: `auth-url` and the annotations beside it.

use std::collections::BTreeMap;

use flatout_site::plan::{Template, Variable};

use super::annotation::{is_token, list};
use crate::kinds::ObjectKey;
use crate::objects::Objects;

/// The parameter of the sign-in page that says where the client wanted to go.
const REDIRECT_PARAMETER: &str = "rd";

/// The service, as the annotations of an Ingress name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AuthService {
    pub(super) place: AuthPlace,
    pub(super) is_tls: bool,
    /// The path and query of the requests to it.
    pub(super) target: Template,
    /// The path alone, which another Ingress may serve.
    pub(super) path: String,
    /// Fields of its response that are added to the request.
    pub(super) response_fields: Vec<String>,
    /// Where clients without permission are sent.
    pub(super) sign_in: Option<Template>,
}

/// Where the service is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum AuthPlace {
    /// A Service, and its port.
    Service(ObjectKey, u16),
    /// What an Ingress of the same namespace serves for this host; `None`: for the host of the request.
    Host(Option<String>),
}

impl AuthService {
    /// Reads it from the annotations of an Ingress, without their prefix. `None` if there is none.
    ///
    /// # Errors
    /// One of them has a value that is not supported; with the annotation's name.
    pub(super) fn parse(
        annotations: &BTreeMap<&str, &str>,
        objects: &Objects,
    ) -> Result<Option<AuthService>, String> {
        let wrong = |name: &'static str| move |why: String| format!("annotation {name}: {why}");
        let Some(url) = annotations.get("auth-url") else { return Ok(None) };
        if let Some(method) = annotations.get("auth-method").filter(|it| **it != "GET") {
            return Err(wrong("auth-method")(format!("got `{method}`; the service is asked with GET")));
        }
        let fields = annotations.get("auth-response-headers").map(|it| list(it)).unwrap_or_default();
        if let Some(field) = fields.iter().find(|it| !is_token(it)) {
            return Err(wrong("auth-response-headers")(format!("got `{field}`, need names of fields")));
        }
        let parameter = annotations.get("auth-signin-redirect-param").copied().unwrap_or(REDIRECT_PARAMETER);
        let sign_in = annotations.get("auth-signin").map(|url| sign_in(url, parameter));
        let service = AuthService::at(url, objects).map_err(wrong("auth-url"))?;
        let sign_in = sign_in.transpose().map_err(wrong("auth-signin"))?;
        Ok(Some(AuthService { response_fields: fields, sign_in, ..service }))
    }

    fn at(url: &str, objects: &Objects) -> Result<AuthService, String> {
        let wrong = || format!("got `{url}`, need a URL such as http://auth.default.svc.cluster.local/check");
        let (scheme, rest) = url.split_once("://").ok_or_else(wrong)?;
        let is_tls = match scheme {
            "http" => false,
            "https" => true,
            _ => return Err(wrong()),
        };
        let (authority, target) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) => (host, Some(port.parse::<u16>().map_err(|_| wrong())?)),
            None => (authority, None),
        };
        let target = if target.starts_with('/') { target.to_owned() } else { format!("/{target}") };
        let path = target.split('?').next().unwrap_or_default().to_owned();
        let usual_port = if is_tls { 443 } else { 80 };
        let is_usual = port.is_none_or(|port| port == usual_port);
        let place = match host {
            "$host" | "$http_host" | "$best_http_host" if is_usual => AuthPlace::Host(None),
            _ if !is_host_name(host) => return Err(wrong()),
            _ => match service_of(host, objects) {
                Some(key) => AuthPlace::Service(key, port.unwrap_or(usual_port)),
                None if is_usual => AuthPlace::Host(Some(host.to_ascii_lowercase())),
                None => {
                    return Err(format!(
                        "got `{url}`: an Ingress serves hosts at the ports 80 and 443; name a Service"
                    ));
                }
            },
        };
        let (response_fields, sign_in) = (Vec::new(), None);
        Ok(AuthService { place, is_tls, target: template(&target)?, path, response_fields, sign_in })
    }
}

/// The Service of a name of the cluster's DNS.
fn service_of(host: &str, objects: &Objects) -> Option<ObjectKey> {
    let host = host.trim_end_matches('.');
    let short = host.strip_suffix(".svc.cluster.local").or_else(|| host.strip_suffix(".svc"));
    let (name, namespace) = short.unwrap_or(host).split_once('.')?;
    let key = ObjectKey::new(namespace, name);
    // `auth.default` could also be a host of the internet.
    (short.is_some() || objects.services.contains_key(&key)).then_some(key)
}

fn is_host_name(host: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-.".contains(&byte);
    !host.is_empty() && host.bytes().all(is_allowed)
}

/// The page where clients sign in, with the URL to which they return, unless the page's own URL has that.
fn sign_in(url: &str, parameter: &str) -> Result<Template, String> {
    if !(url.starts_with("http://") || url.starts_with("https://")) {
        return Err(format!("got `{url}`, need a URL that begins with http:// or https://"));
    }
    let query = url.split_once('?').map(|(_, query)| query);
    let has_parameter =
        query.is_some_and(|it| it.split('&').any(|pair| pair.split('=').next() == Some(parameter)));
    let back = match (query, has_parameter) {
        (_, true) => return template(url),
        (Some(_), false) => format!("&{parameter}="),
        (None, false) => format!("?{parameter}="),
    };
    template(&format!("{url}{back}$scheme://$http_host$escaped_request_uri"))
}

/// A text with variables of ingress-nginx.
fn template(text: &str) -> Result<Template, String> {
    let other = |name: &str| match name {
        "pass_access_scheme" => Some(Variable::Scheme),
        "best_http_host" => Some(Variable::Authority),
        "pass_server_port" => Some(Variable::ServerPort),
        _ => None,
    };
    Template::parse(text, other).map_err(|bad| bad.to_string())
}
