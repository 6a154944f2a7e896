//! Variables that depend on the user, or on fields of an auth service. Routes and paths are chosen before these are known, so that no
//! path can be made of them.

use crate::nginx::Directive;

use super::{Import, values};

/// Tables, variables and links that have a value of their own.
const MADE_FROM: [&str; 6] = ["set", "map", "geo", "split_clients", "secure_link", "secure_link_md5"];

impl<'d> Import<'d> {
    /// The first variable of a text that depends on the user.
    pub(super) fn of_user<'t>(&self, text: &'t str) -> Option<&'t str> {
        first(text, &self.of_users)
    }

    /// Why no path can be made of a text.
    pub(super) fn no_path(&self, text: &str) -> Option<String> {
        self.unsupported(text).or_else(|| {
            let of_user = self.of_user(text)?;
            Some(format!("${of_user} depends on the user, and paths are chosen before that is known"))
        })
    }

    /// Why a text cannot be converted: one of its variables does not exist here.
    pub(super) fn unsupported(&self, text: &str) -> Option<String> {
        values::unknown_variable(text, &self.maps).map(values::unsupported)
    }
}

/// The names of such variables, beside those of nginx.
pub(super) fn names(http: &[Directive]) -> Vec<String> {
    let mut names = Vec::new();
    loop {
        let count = names.len();
        collect(http, false, &mut names);
        if names.len() == count {
            return names;
        }
    }
}

/// Adds the variables of a block. In an `if` with the user in its condition, all of them are such.
fn collect(block: &[Directive], is_of_user: bool, names: &mut Vec<String>) {
    for directive in block {
        let has = |directive: &Directive| directive.texts().iter().any(|text| first(text, names).is_some());
        let is_here =
            is_of_user || has(directive) || (directive.name == "map" && directive.inner().iter().any(has));
        let name = match directive.name.as_str() {
            name if !MADE_FROM.contains(&name) => None,
            "set" => Some(directive.word(0)),
            "secure_link" | "secure_link_md5" => Some("secure_link"),
            _ => directive.texts().last().copied(),
        };
        if let Some(name) = name.map(|name| name.trim_start_matches('$')).filter(|_| is_here)
            && !names.iter().any(|known| known == name)
        {
            names.push(name.to_owned());
        }
        collect(directive.inner(), is_of_user || (directive.name == "if" && is_here), names);
    }
}

fn first<'t>(text: &'t str, names: &[String]) -> Option<&'t str> {
    let is_of_user = |name: &&str| {
        *name == "remote_user" || name.starts_with("auth_http_") || names.iter().any(|known| known == name)
    };
    values::variables(text).into_iter().find(is_of_user)
}

#[cfg(test)]
mod tests {
    use super::super::written::{imported, of_server};

    #[test]
    fn no_path_is_made_of_the_user() {
        for content in [
            "location / { root /srv/$remote_user; }",
            "location / { alias /srv/$remote_user/; }",
            "location ~ ^/(.*)$ { alias /srv/${remote_user}/$1; }",
            "location / { set $who $remote_user; root /srv/$who; }",
            "location / { set $who $remote_user; set $folder a-$who; root /srv/$folder; }",
            "location / { set $who x; if ($remote_user) { set $who y; } root /srv/$who; }",
            "location / { rewrite ^/(.*)$ /$remote_user/$1 break; root /srv; }",
            "rewrite ^/(.*)$ /$remote_user/$1; location / { root /srv; }",
            "location / { if ($arg_a) { rewrite ^ /$remote_user last; } root /srv; }",
            "location / { if ($remote_user = bob) { rewrite ^ /b last; } root /srv; }",
            "location / { if ($remote_user = bob) { proxy_pass http://a:1; } root /srv; }",
            "location / { proxy_pass http://a:1/$remote_user$uri; }",
            "location / { root /srv; try_files /$remote_user$uri =404; }",
            "auth_request /auth; auth_request_set $who $upstream_http_x_user; location / { root /srv/$who; } \
             location = /auth { internal; proxy_pass http://a:1; }",
        ] {
            let site = of_server(content);
            assert!(site.contains("501") && !site.contains("files \"/srv"), "{content}: {site}");
        }
    }

    #[test]
    fn no_path_is_made_of_a_table_of_users() {
        let map =
            "map $remote_user $folder { default $remote_user; ann a; } map $host $other { default $folder; }";
        for root in ["$folder", "$other"] {
            let site = format!("http {{ {map} server {{ listen 80; location / {{ root /srv/{root}; }} }} }}");
            let text = imported(&site).text;
            assert!(text.contains("respond 501") && !text.contains("rewrite"), "{text}");
        }
    }

    #[test]
    fn responses_may_depend_on_the_user() {
        let site = of_server("location / { proxy_pass http://a:1; proxy_set_header X-User $remote_user; }");
        assert!(site.contains("$remote_user") && !site.contains("501"), "{site}");
    }
}
