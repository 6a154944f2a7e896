//! Which requests ask for a page that could be rendered.

/// Extensions of paths that lead to no page: what pages load, and what is downloaded.
const EXTENSIONS: [&str; 75] = [
    "7z",
    "aac",
    "apk",
    "atom",
    "avi",
    "avif",
    "bin",
    "bmp",
    "br",
    "bz2",
    "css",
    "csv",
    "dat",
    "deb",
    "dmg",
    "doc",
    "docx",
    "eot",
    "epub",
    "exe",
    "flac",
    "flv",
    "gif",
    "gz",
    "ico",
    "ics",
    "iso",
    "jar",
    "jpeg",
    "jpg",
    "js",
    "json",
    "jxl",
    "less",
    "m3u8",
    "m4a",
    "m4v",
    "map",
    "mid",
    "mjs",
    "mov",
    "mp3",
    "mp4",
    "mpeg",
    "mpg",
    "ogg",
    "ogv",
    "opus",
    "otf",
    "pdf",
    "png",
    "ppt",
    "pptx",
    "psd",
    "rar",
    "rss",
    "svg",
    "swf",
    "tar",
    "tgz",
    "tif",
    "tiff",
    "torrent",
    "ttf",
    "txt",
    "wasm",
    "wav",
    "webm",
    "webmanifest",
    "webp",
    "woff",
    "woff2",
    "xml",
    "zip",
    "zst",
];

/// Whether a request asks for a page: a method that changes nothing, a path whose extension is none of files, and an
/// `Accept` that takes HTML. `accept` is `None` if the request has no such field.
pub fn wants_page(method: &[u8], path: &[u8], accept: Option<&[u8]>) -> bool {
    matches!(method, b"GET" | b"HEAD") && !is_file(path) && accept.is_none_or(takes_html)
}

/// Whether the last segment has an extension of [`EXTENSIONS`].
fn is_file(path: &[u8]) -> bool {
    let segment = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    let Some(dot) = segment.iter().rposition(|&byte| byte == b'.') else { return false };
    let extension = segment.get(dot + 1..).unwrap_or_default();
    let is_it = |known: &str| known.as_bytes().eq_ignore_ascii_case(extension);
    EXTENSIONS.iter().any(|known| is_it(known))
}

/// Whether `Accept` includes HTML (RFC 9110 section 12.5.1); a weight of 0 excludes it.
fn takes_html(accept: &[u8]) -> bool {
    accept.is_empty()
        || accept.split(|&byte| byte == b',').any(|range| {
            let mut parts = range.split(|&byte| byte == b';').map(<[u8]>::trim_ascii);
            let kind = parts.next().unwrap_or_default();
            let includes = ["text/html", "application/xhtml+xml", "text/*", "*/*"];
            let is_excluded = parts.any(|parameter| {
                let value = parameter.strip_prefix(b"q=").or(parameter.strip_prefix(b"Q="));
                value.is_some_and(|value| {
                    !value.is_empty() && value.iter().all(|byte| matches!(byte, b'0' | b'.'))
                })
            });
            !is_excluded && includes.iter().any(|known| known.as_bytes().eq_ignore_ascii_case(kind))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_for_files_are_not_for_pages() {
        for (method, path, accept, expected) in [
            ("GET", "/", None, true),
            ("HEAD", "/articles/1", Some("*/*"), true),
            ("POST", "/", None, false),
            ("get", "/", None, false),
            ("GET", "/app.js", None, false),
            ("GET", "/a/PHOTO.JPG", None, false),
            ("GET", "/a.b/c", None, true),
            ("GET", "/index.html", None, true),
            ("GET", "/releases/v1.2", None, true),
            ("GET", "/page.php", None, true),
            ("GET", "/", Some("image/avif,image/webp"), false),
            ("GET", "/", Some("text/html;q=0.9, */*;q=0.1"), true),
            ("GET", "/", Some("text/html;q=0, image/png"), false),
            ("GET", "/", Some("text/html; q=0.000, text/*"), true),
            ("GET", "/", Some(""), true),
            ("GET", "/", Some("application/json"), false),
        ] {
            let accept = accept.map(str::as_bytes);
            assert_eq!(
                wants_page(method.as_bytes(), path.as_bytes(), accept),
                expected,
                "{method} {path} {accept:?}"
            );
        }
    }

    #[test]
    fn extensions_are_sorted_and_in_lower_case() {
        assert!(EXTENSIONS.is_sorted());
        assert!(
            EXTENSIONS
                .iter()
                .all(|it| it.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit()))
        );
    }
}
