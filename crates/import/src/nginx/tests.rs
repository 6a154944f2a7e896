//! Configurations as they are read, and each mistake as it is shown.

use flatout_config::Source;

use super::{BLOCKS_DEEP_MAX, Directive, FILE, parse, read};

fn parsed(text: &str) -> Result<Vec<Directive>, String> {
    let source =
        Source::new("nginx.conf", text.as_bytes().to_vec(), &FILE).map_err(|mistake| mistake.to_string())?;
    parse(&source, "nginx.conf").map_err(|mistake| mistake.to_string())
}

fn words(text: &str) -> Vec<String> {
    let directives = parsed(text).unwrap();
    directives[0].texts().into_iter().map(str::to_owned).collect()
}

#[test]
fn words_are_read_as_nginx_reads_them() {
    for (text, expected) in [
        ("a b  c;", &["b", "c"][..]),
        ("a \"b c\" 'd;e' f\"g;", &["b c", "d;e", "f\"g"]),
        ("a \"b\\\"c\" 'd\\'e' f\\ g;", &["b\"c", "d'e", "f\\ g"]),
        ("a ${b}c $d;", &["${b}c", "$d"]),
        ("a \"\\.php$\" \\.php$ \\\\x;", &["\\.php$", "\\.php$", "\\x"]),
        ("a b#c # d\n e;", &["b#c", "e"]),
        ("a \"\" 'x\ny';", &["", "x\ny"]),
        ("\u{feff}a\r\n\tb;\r\n", &["b"]),
    ] {
        assert_eq!(words(text), expected, "{text}");
    }
}

#[test]
fn blocks_lie_in_each_other() {
    let directives =
        parsed("# one\n#two\nhttp {\n  server { listen 80; } # three\n  a_by_lua_block { if x { y } }\n}\n")
            .unwrap();
    let [http] = &directives[..] else { panic!("{directives:?}") };
    assert_eq!((http.comments.join("|").as_str(), http.line), ("one|two", 3));
    let [server, lua] = http.inner() else { panic!("{http:?}") };
    assert_eq!((server.line, server.inner()[0].to_string().as_str()), (4, "listen 80;"));
    assert_eq!(lua.to_string(), "a_by_lua_block { … }");
}

#[test]
fn mistakes_are_shown_where_they_are() {
    for (text, expected) in [
        ("a b", "nginx.conf:1:1: `a` is not ended by `;`\n  1 | a b\n    | ^"),
        ("a {\n b;\n", "nginx.conf:1:3: this brace is not closed\n  1 | a {\n    |   ^"),
        ("a;\n}", "nginx.conf:2:1: this closing brace has no opening brace\n  2 | }\n    | ^"),
        ("a { b }", "nginx.conf:1:7: `b` is not ended by `;`\n  1 | a { b }\n    |       ^"),
        ("a;;", "nginx.conf:1:3: there is no directive before this `;`\n  1 | a;;\n    |   ^"),
        ("{ a; }", "nginx.conf:1:1: there is no directive before this `{`\n  1 | { a; }\n    | ^"),
        ("a\n \"b;", "nginx.conf:2:2: this quote is not closed\n  2 |  \"b;\n    |  ^"),
        (
            "a \"b\"c;",
            "nginx.conf:1:6: the closing quote must be followed by a space, `;` or `{`\n  1 | a \"b\"c;\n    |      ^",
        ),
        (
            "x_by_lua_block { {",
            "nginx.conf:1:16: this brace is not closed\n  1 | x_by_lua_block { {\n    |                ^",
        ),
        ("", "nginx.conf:1:1: it is empty; an nginx configuration needs directives"),
    ] {
        assert_eq!(parsed(text).unwrap_err(), expected, "{text}");
    }
    let deep = parsed(&"a {".repeat(BLOCKS_DEEP_MAX + 1)).unwrap_err();
    assert!(deep.contains("deeper than 64"), "{deep}");
}

#[test]
fn files_are_included_where_they_are_named() {
    let folder = std::env::temp_dir().join(format!("flatout-import-{}", std::process::id()));
    std::fs::create_dir_all(folder.join("conf.d")).unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).unwrap();
    write("nginx.conf", "http {\n include conf.d/*.conf;\n include none*.conf;\n c;\n}\ninclude empty;\n");
    write("conf.d/b.conf", "b;\n");
    write("conf.d/a.conf", "a;\n");
    write("conf.d/.hidden.conf", "x {");
    write("empty", "\n");
    let told = |name: &str| read(&folder.join(name));
    let directives = told("nginx.conf").unwrap();
    let names: Vec<&str> = directives[0].inner().iter().map(|directive| directive.name.as_str()).collect();
    assert_eq!((directives.len(), names), (1, vec!["a", "b", "c"]));
    assert!(directives[0].inner()[1].file.ends_with("conf.d/b.conf"));

    write("loop.conf", "include loop.conf;");
    assert!(told("loop.conf").unwrap_err().contains("nested deeper than 16"));
    write("gone.conf", "a;\n include gone;");
    assert!(told("gone.conf").unwrap_err().contains("gone.conf:2: cannot read"));
    write("wrong.conf", "include conf.d/c.conf;");
    write("conf.d/c.conf", "x {");
    assert!(told("wrong.conf").unwrap_err().contains("conf.d/c.conf:1:3: this brace is not closed"));
    std::fs::remove_dir_all(&folder).unwrap();
}
