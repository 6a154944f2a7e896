//! Masks secrets in URLs and forms: a log is read by more people than may use the tokens in it.

use std::borrow::Cow;

/// Parameters whose names end with one of these words, such as `access_token`, `user[password]` or `X-Amz-Signature`.
const NAME_ENDINGS: [&[u8]; 13] = [
    b"token",
    b"password",
    b"passwd",
    b"passphrase",
    b"pwd",
    b"secret",
    b"apikey",
    b"api_key",
    b"api-key",
    b"access_key",
    b"signature",
    b"credential",
    b"jwt",
];

/// Parameters with exactly these names.
const NAMES: [&[u8]; 3] = [b"sig", b"auth", b"authorization"];

/// What is logged in place of a secret.
pub(super) const MASK: &[u8] = b"***";

/// Whether a parameter of this name holds a secret.
pub(super) fn is_secret(name: &[u8]) -> bool {
    let name = name.strip_suffix(b"]").or_else(|| name.strip_suffix(b"%5D")).unwrap_or(name);
    let ends = |ending: &&[u8]| {
        let start = name.len().checked_sub(ending.len());
        start.and_then(|start| name.get(start..)).is_some_and(|end| end.eq_ignore_ascii_case(ending))
    };
    NAME_ENDINGS.iter().any(ends) || NAMES.iter().any(|it| name.eq_ignore_ascii_case(it))
}

/// A URL, or a request line, with the secrets in its query masked.
pub(super) fn masked_url(url: &[u8]) -> Cow<'_, [u8]> {
    let Some(at) = url.iter().position(|&byte| byte == b'?') else { return Cow::Borrowed(url) };
    let (path, query) = url.split_at(at + 1);
    match masked_query(query) {
        Cow::Borrowed(_) => Cow::Borrowed(url),
        Cow::Owned(query) => Cow::Owned([path, &query].concat()),
    }
}

/// The same for a query without its question mark.
pub(super) fn masked_query(query: &[u8]) -> Cow<'_, [u8]> {
    // A fragment or the version of the request line may follow.
    let end = query.iter().position(|&byte| byte == b' ' || byte == b'#').unwrap_or(query.len());
    let (pairs, rest) = query.split_at(end);
    match masked_form(pairs) {
        Cow::Borrowed(_) => Cow::Borrowed(query),
        Cow::Owned(masked) => Cow::Owned([&masked[..], rest].concat()),
    }
}

/// The same for the body of a form: pairs as in a query. What is no form stays as it is.
pub(super) fn masked_form(form: &[u8]) -> Cow<'_, [u8]> {
    let secret = |pair: &[u8]| {
        let at = pair.iter().position(|&byte| byte == b'=')?;
        (at + 1 < pair.len() && pair.get(..at).is_some_and(is_secret)).then_some(at + 1)
    };
    let pairs = || form.split(|&byte| byte == b'&');
    if pairs().all(|pair| secret(pair).is_none()) {
        return Cow::Borrowed(form);
    }
    let mask = |pair: &[u8]| match secret(pair) {
        Some(at) => [pair.get(..at).unwrap_or_default(), MASK].concat(),
        None => pair.to_vec(),
    };
    let masked: Vec<Vec<u8>> = pairs().map(mask).collect();
    Cow::Owned(masked.join(&b'&'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_in_a_query_are_masked() {
        for (url, expected) in [
            ("/a", "/a"),
            ("/a?", "/a?"),
            ("/a?b=c&d", "/a?b=c&d"),
            ("/a?token=x", "/a?token=***"),
            ("/a?TOKEN=x&b=1", "/a?TOKEN=***&b=1"),
            ("GET /a?b=1&access_token=x HTTP/1.1", "GET /a?b=1&access_token=*** HTTP/1.1"),
            ("GET /a?password= HTTP/1.1", "GET /a?password= HTTP/1.1"),
            ("/a?user[password]=x&user%5Bpassword%5D=y", "/a?user[password]=***&user%5Bpassword%5D=***"),
            ("https://a/b?api_key=x?y=z#c", "https://a/b?api_key=***#c"),
            ("/a?X-Amz-Signature=x&key=y&sig=z", "/a?X-Amz-Signature=***&key=y&sig=***"),
            ("/a?keys=b&monkey=c&tokens=d", "/a?keys=b&monkey=c&tokens=d"),
            ("/token=x", "/token=x"),
        ] {
            assert_eq!(String::from_utf8_lossy(&masked_url(url.as_bytes())), expected, "{url}");
        }
        assert_eq!(*masked_query(b"a=b&jwt=c"), *b"a=b&jwt=***");
        assert_eq!(*masked_form(b"name=a b&password=c d#e"), *b"name=a b&password=***");
        assert_eq!(*masked_form(b"{\"a\": \"b=c\"}"), *b"{\"a\": \"b=c\"}");
    }
}
