//! Masks secrets in results: people share reports, and the commands in them may contain tokens and passwords.
//!
//! The value of a header field is shown only if its name is known to be harmless. In commands and messages, secrets
//! are recognized by name and masked: `Authorization: …`, `token=…`, `--password …`, `user:…@host`, `"password": "…"`
//! in JSON, `curl -u user:…`, `Bearer …`.

use std::ops::Range;

/// Replaces a secret.
pub const MASK: &str = "***";

/// Fields whose values are public.
const HARMLESS: [&str; 21] = [
    "accept",
    "accept-charset",
    "accept-encoding",
    "accept-language",
    "cache-control",
    "connection",
    "content-encoding",
    "content-language",
    "content-length",
    "content-type",
    "date",
    "expect",
    "host",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "pragma",
    "range",
    "te",
    "transfer-encoding",
    "user-agent",
];

/// A name that contains one of these is a secret's; `-`, `_` and case are ignored.
const SECRET_PARTS: [&str; 14] = [
    "authorization",
    "apikey",
    "accesskey",
    "privatekey",
    "token",
    "secret",
    "password",
    "passwd",
    "passphrase",
    "cookie",
    "credential",
    "session",
    "signature",
    "jwt",
];

/// Complete names of secrets.
const SECRET_NAMES: [&str; 7] = ["auth", "key", "pass", "pwd", "sid", "sig", "xauth"];

/// The value of a header field, masked if necessary.
pub fn value(name: &str, value: &str) -> String {
    match HARMLESS.contains(&name.trim().to_ascii_lowercase().as_str()) {
        true => masked(value),
        false => MASK.to_owned(),
    }
}

/// The same for a whole `Name: value`.
pub fn field(field: &str) -> String {
    match field.split_once(':') {
        Some((name, text)) => format!("{name}: {}", value(name, text.trim())),
        None => MASK.to_owned(),
    }
}

/// The command line, argument by argument.
pub fn arguments(typed: impl Iterator<Item = String>) -> Vec<String> {
    let mut is_field = false;
    let told = |argument: String| {
        if std::mem::replace(&mut is_field, ["-H", "--header"].contains(&argument.as_str())) {
            return field(&argument);
        }
        if let Some((flag, user)) = attached_user(&argument) {
            return format!("{flag}{user}:{MASK}");
        }
        match ["--header=", "-H"].into_iter().find_map(|flag| Some((flag, argument.strip_prefix(flag)?))) {
            Some((flag, text)) if !text.is_empty() => format!("{flag}{}", field(text)),
            _ => masked(&argument),
        }
    };
    typed.map(told).collect()
}

/// The flag and the user of `-uUSER:PASSWORD`.
fn attached_user(argument: &str) -> Option<(&str, &str)> {
    let user = argument.strip_prefix("-u")?.split_once(':')?.0;
    (!user.is_empty() && user.bytes().all(|byte| byte.is_ascii_alphanumeric())).then_some(("-u", user))
}

/// Words that precede credentials, in any context.
const SCHEMES: [&str; 4] = ["Bearer", "Basic", "Digest", "Token"];

/// Flags of curl and similar tools whose value is `user:password`.
const USER_FLAGS: [&str; 4] = ["-u", "--user", "-U", "--proxy-user"];

/// A text, such as a command, with secrets masked.
pub fn masked(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let (mut told, mut from) = (0, 0);
    while let Some(at) = text[from..].find([':', '=', ' ']).map(|at| from + at) {
        from = at + 1;
        if let Some(secret) = secret_behind(text, at).filter(|secret| !secret.is_empty()) {
            out.push_str(&text[told..secret.start]);
            out.push_str(MASK);
            told = secret.end;
            from = told;
        }
    }
    out.push_str(&text[told..]);
    out
}

/// The secret after the `:`, `=` or blank at `at`.
fn secret_behind(text: &str, at: usize) -> Option<Range<usize>> {
    let (before, behind) = (&text[..at], &text[at..]);
    if behind.starts_with("://") {
        return password(text, at + "://".len());
    }
    let is_of_name = |char: char| char.is_ascii_alphanumeric() || matches!(char, '-' | '_');
    // A JSON key is in quotes, which may be escaped.
    let is_key = behind.starts_with(':') && before.ends_with('"');
    let bare = if is_key { before.trim_end_matches(['"', '\\']) } else { before };
    let name = &bare[bare.trim_end_matches(is_of_name).len()..];
    if USER_FLAGS.contains(&name) && behind.starts_with([' ', '=']) {
        return user_password(text, at + 1);
    }
    if SCHEMES.contains(&name) && behind.starts_with(' ') {
        return Some(word(text, at + 1));
    }
    if !is_secret(name) {
        return None;
    }
    if is_key {
        return Some(json_value(text, at + 1));
    }
    let opened = bare[..bare.len() - name.len()].chars().next_back();
    let value = &behind[1..];
    let start = text.len() - value.trim_start_matches(' ').len();
    match &behind[..1] {
        ":" => Some(
            start..until(text, start, |char| match opened {
                Some(quote @ ('"' | '\'')) => char == quote || char == '\n',
                _ => matches!(char, '"' | '\'' | '\n'),
            }),
        ),
        "=" => Some(word(text, at + 1)),
        _ if name.starts_with("--") && !text[start..].starts_with('-') => Some(word(text, start)),
        _ => None,
    }
}

/// The password of a URL whose authority starts at `start`; a user without a password is a token.
fn password(text: &str, start: usize) -> Option<Range<usize>> {
    let end = until(text, start, |char| char.is_whitespace() || "/?#'\"".contains(char));
    let user = &text[start..start + text[start..end].rfind('@')?];
    let colon = user.find(':').map_or(0, |colon| colon + 1);
    Some(start + colon..start + user.len())
}

/// The password in the `user:password` that starts at `start`.
fn user_password(text: &str, start: usize) -> Option<Range<usize>> {
    let start = text.len() - text[start..].trim_start_matches(' ').len();
    let all = word(text, start);
    let colon = text[all.clone()].find(':')?;
    Some(all.start + colon + 1..all.end)
}

/// The value of a JSON key after its colon: a string, whose quotes may be escaped, or the text up to the next
/// delimiter.
fn json_value(text: &str, colon: usize) -> Range<usize> {
    let start = text.len() - text[colon..].trim_start().len();
    let opening = text[start..].len() - text[start..].trim_start_matches('\\').len();
    let from = start + opening;
    if !text[from..].starts_with('"') {
        return start..until(text, start, |char| char.is_whitespace() || ",}]".contains(char));
    }
    // It ends at a quote with the same escaping as the first one.
    let (mut at, mut escapes) = (from + 1, 0);
    for char in text[from + 1..].chars() {
        match char {
            '\\' => escapes += 1,
            '"' if escapes == opening => return from + 1..at - opening,
            _ => escapes = 0,
        }
        at += char.len_utf8();
    }
    from + 1..text.len()
}

/// A shell word from `start` on, quoted or not; one parameter of a query.
fn word(text: &str, start: usize) -> Range<usize> {
    match text[start..].chars().next() {
        Some(quote @ ('"' | '\'')) => start + 1..until(text, start + 1, |char| char == quote),
        _ => start..until(text, start, |char| char.is_whitespace() || "&;'\"`)#".contains(char)),
    }
}

fn until(text: &str, start: usize, is_end: impl Fn(char) -> bool) -> usize {
    text[start..].find(is_end).map_or(text.len(), |at| start + at)
}

fn is_secret(name: &str) -> bool {
    let plain: String = name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_lowercase();
    SECRET_NAMES.contains(&plain.as_str()) || SECRET_PARTS.iter().any(|part| plain.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn harmless_fields_are_shown() {
        for (text, expected) in [
            ("Authorization: Bearer abc", "Authorization: ***"),
            ("Proxy-Authorization:Basic eA==", "Proxy-Authorization: ***"),
            ("Cookie: a=b; c=d", "Cookie: ***"),
            ("X-Api-Key: abc", "X-Api-Key: ***"),
            ("X-Acme: who knows", "X-Acme: ***"),
            ("Accept: text/html", "Accept: text/html"),
            ("content-type: application/json", "content-type: application/json"),
            ("no field", "***"),
        ] {
            assert_eq!(field(text), expected);
        }
    }

    #[test]
    fn typed_commands_are_shown_without_secret_fields() {
        let typed = "climb|-ume:pw|--header|X: a b|-H|Accept: c|-HX: d|--header=Y: e|--url|http://u:f@h/|-H";
        let told = arguments(typed.split('|').map(str::to_owned)).join("|");
        assert_eq!(
            told,
            "climb|-ume:***|--header|X: ***|-H|Accept: c|-HX: ***|--header=Y: ***|--url|http://u:***@h/|-H"
        );
    }

    #[test]
    fn commands_are_masked_only_where_secret() {
        for (text, expected) in [
            (
                "wrk -H \"Authorization: it's b\" -d1s http://h/",
                "wrk -H \"Authorization: ***\" -d1s http://h/",
            ),
            ("oha -H 'cookie: a=b; c=d' x", "oha -H 'cookie: ***' x"),
            ("curl -H X-Api-Key:abc", "curl -H X-Api-Key:***"),
            ("wrk http://me:pa@ss@h:80/p?q=1", "wrk http://me:***@h:80/p?q=1"),
            ("git clone https://ghp_1@h/", "git clone https://***@h/"),
            ("http://h/?a=1&api_key=k&b=2#c", "http://h/?a=1&api_key=***&b=2#c"),
            ("API_TOKEN=abc DB_PASSWORD='a b' nginx", "API_TOKEN=*** DB_PASSWORD='***' nginx"),
            (
                "server --password abc --token=\"x y\" --workers 2",
                "server --password *** --token=\"***\" --workers 2",
            ),
            ("server --token --verbose", "server --token --verbose"),
            ("Bücher: ü=ß Passwort; PASSWORD=ü", "Bücher: ü=ß Passwort; PASSWORD=***"),
            ("token=", "token="),
            ("curl -u me:pw http://h/", "curl -u me:*** http://h/"),
            ("curl --user 'me:p w' --user=a:b x", "curl --user 'me:***' --user=a:*** x"),
            ("curl -u me http://h/", "curl -u me http://h/"),
            (r#"-d '{"user":"me","password":"p\"w","n":1}'"#, r#"-d '{"user":"me","password":"***","n":1}'"#),
            (r#"-d "{\"password\": \"pw\", \"a\": 1}""#, r#"-d "{\"password\": \"***\", \"a\": 1}""#),
            (r#"{"pin":1,"apiKey":12345}"#, r#"{"pin":1,"apiKey":***}"#),
            ("wrk -H 'X: Bearer abc.def' http://h/", "wrk -H 'X: Bearer ***' http://h/"),
            ("oha -H \"authorization: Basic eA==\" http://h/", "oha -H \"authorization: ***\" http://h/"),
        ] {
            assert_eq!(masked(text), expected);
            assert_eq!(masked(expected), expected, "once is enough");
        }
        for cut in [
            "{\"password\":",
            "{\"password\":\"",
            "{\"password\":\"\\",
            "curl -u ",
            "-u me:",
            "Bearer ",
            "\"password\":\\",
        ] {
            assert!(masked(cut).starts_with(cut.trim_end_matches('\\')), "{cut}");
        }
        for harmless in [
            "flatout climb --port 8080 conntrack -H 'Accept: */*' --bench 'wrk -t2 -c64 -d2s $FLATOUT_URL'",
            "sysctl -w net.ipv4.tcp_congestion_control=reno && sysctl -w net.core.somaxconn=4096",
            "127.0.0.1:80 is reached without a network device; try --lab",
            "exec /usr/bin/flatout json-api --listen [::1]:80 --workers 2",
            "",
        ] {
            assert_eq!(masked(harmless), harmless);
        }
    }
}
