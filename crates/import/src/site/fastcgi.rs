//! `fastcgi_pass`: an upstream with `protocol fastcgi`.
//!
//! The parameters of nginx's own `fastcgi_params` are those that the server sends by itself; only others are written.

use crate::nginx::Directive;

use super::chain::Chain;
use super::location::Path;
use super::out::{Lines, text, value};
use super::{Import, answers, values};

/// A folder that does not exist: the application does not ask for a script.
const NO_FOLDER: &str = "/nonexistent";

/// No connection stays open without a request.
pub(super) const NO_POOL: &str = "pool 0";

/// Parameters that the server sends by itself, and the values that nginx has for the same.
const USUAL: [(&str, &[&str]); 20] = [
    ("CONTENT_LENGTH", &["$content_length"]),
    ("CONTENT_TYPE", &["$content_type"]),
    ("DOCUMENT_ROOT", &["$document_root", "$realpath_root"]),
    ("DOCUMENT_URI", &["$document_uri", "$uri"]),
    ("GATEWAY_INTERFACE", &["CGI/1.1"]),
    ("HTTPS", &["$https"]),
    ("HTTP_PROXY", &[""]),
    ("PATH_INFO", &["$fastcgi_path_info", "$path_info"]),
    ("PATH_TRANSLATED", &["$document_root$fastcgi_path_info", "$document_root$path_info"]),
    ("QUERY_STRING", &["$query_string", "$args"]),
    ("REDIRECT_STATUS", &["200"]),
    ("REMOTE_ADDR", &["$remote_addr"]),
    ("REMOTE_PORT", &["$remote_port"]),
    ("REQUEST_METHOD", &["$request_method"]),
    ("REQUEST_SCHEME", &["$scheme"]),
    ("REQUEST_URI", &["$request_uri"]),
    ("SCRIPT_NAME", &["$fastcgi_script_name"]),
    ("SERVER_PROTOCOL", &["$server_protocol"]),
    ("SERVER_SOFTWARE", &["nginx/$nginx_version", "nginx"]),
    ("HTTP_HOST", &["$http_host"]),
];

/// How a location's requests become scripts.
struct Scripts {
    root: String,
    /// The path at which this folder is.
    at: String,
    index: String,
    /// Whether the index of the folder gets all requests without a script.
    has_front: bool,
    /// The end of a script's name; `None`: the whole path is its name.
    split: Option<String>,
}

/// Parameters of an upstream.
pub(super) struct Params {
    /// `fastcgi`, `uwsgi` or `scgi`.
    pub(super) family: &'static str,
    /// The folder of scripts, which is sent anyway.
    pub(super) root: String,
    /// Names and values.
    pub(super) constants: Vec<(String, String)>,
}

impl Params {
    /// The settings of the upstream.
    pub(super) fn settings(&self) -> impl Iterator<Item = String> {
        let written = |(name, given): &(String, String)| {
            format!("{}-param {} {}", self.family, text(name), text(given))
        };
        self.constants.iter().map(written)
    }

    fn is_usual(&self, name: &str, given: &str) -> bool {
        match self.family {
            "fastcgi" => is_usual(name, given),
            _ => super::application::is_usual(name, given),
        }
    }
}

/// Whether the server sends this parameter by itself.
pub(super) fn is_usual(name: &str, given: &str) -> bool {
    USUAL.iter().any(|(usual, values)| *usual == name && values.contains(&given))
}

impl<'d> Import<'d> {
    /// Writes `proxy` to an application that speaks FastCGI.
    ///
    /// # Errors
    /// Why it cannot be converted.
    pub(super) fn fastcgi(
        &mut self,
        pass: &'d Directive,
        chain: &Chain<'d>,
        path: Option<&Path>,
        lines: &mut Lines,
    ) -> Result<(), String> {
        self.fastcgi_lost(pass, chain)?;
        let scripts = scripts(chain, path);
        let mut params = Params { family: "fastcgi", root: scripts.root.clone(), constants: Vec::new() };
        for directive in chain.list(&["fastcgi_param"]) {
            self.param(directive, chain, &mut params, lines);
        }
        let list = chain.list(&["fastcgi_param"]);
        let has_path_info = list.iter().any(|param| param.word(0) == "PATH_INFO");
        let pattern = path.and_then(Path::pattern).map_or("", |(pattern, _)| pattern);
        let is_cut = chain.find("fastcgi_split_path_info").is_some() && !pattern.ends_with("\\.php$");
        // It makes the script the whole path.
        let tries_script =
            chain.own().iter().any(|it| it.name == "try_files" && it.word(0) == "$fastcgi_script_name");
        let has = |name: &str, given: &[&str]| {
            list.iter().any(|it| it.word(0) == name && given.contains(&it.word(1)))
        };
        let is_lost = tries_script && has("PATH_INFO", &["$fastcgi_path_info"]);
        if is_cut && !scripts.has_front && (!has_path_info || is_lost) {
            // What follows the script is in the URL alone.
            params.constants.push(("PATH_INFO".to_owned(), String::new()));
        }
        let is_split = chain.find("fastcgi_split_path_info").is_some();
        if is_split && !tries_script && has("DOCUMENT_URI", &["$document_uri", "$uri"]) {
            lines.setting("request-param \"DOCUMENT_URI\" \"$document_uri\"".to_owned());
        }
        let mut settings = vec!["protocol fastcgi".to_owned(), scripts.setting()];
        settings.extend(params.settings());
        if !chain.is_on("fastcgi_keep_conn") {
            // A kept connection would occupy one of the application's processes.
            settings.push(NO_POOL.to_owned());
        }
        if !self.proxy_to_application(pass.word(0), false, "fastcgi", settings, chain, lines)? {
            return Ok(());
        }
        // A script that is not there gets no request here either.
        let own_path = path.and_then(Path::exact);
        let tries = |directive: &&Directive| {
            let tries_script = ["$uri", "$fastcgi_script_name"].contains(&directive.word(0))
                || own_path == Some(directive.word(0));
            (directive.name == "try_files" && tries_script && directive.words.len() == 2)
                || is_script_test(directive)
        };
        chain.own().iter().filter(tries).for_each(|directive| self.carry(directive));
        self.other_scripts(chain, lines);
        self.transfer(chain, "fastcgi", lines);
        Ok(())
    }

    /// Writes what runs in place of a script that is not there: `try_files $uri /index.php =404`.
    fn other_scripts(&mut self, chain: &Chain<'d>, lines: &mut Lines) {
        let root = chain.word("root");
        let Some(tried) = chain.own().iter().find(|it| it.name == "try_files" && it.words.len() > 2) else {
            return;
        };
        let texts = tried.texts();
        let Some((last, first)) = texts.split_last() else { return };
        let is_usual = first.first().is_some_and(|first| ["$uri", "$fastcgi_script_name"].contains(first));
        if !is_usual || *last != "=404" || !root.starts_with('/') || root.contains('$') {
            return;
        }
        let first: Vec<&str> = std::iter::once("$uri").chain(first.iter().skip(1).copied()).collect();
        let Ok(others) = answers::other_files(&first, root, &self.maps) else { return };
        others.iter().for_each(|other| answers::rewrite_to(other, None, lines));
        self.fates.carried(tried);
    }

    /// The `index` of a folder that is a script, with the names before it. `None` if all of them are files.
    pub(super) fn script_index(&self, chain: &Chain<'d>) -> Option<(&'d str, Vec<&'d str>)> {
        let mut names = chain.find("index")?.words.iter().map(|word| word.text.as_str());
        let mut before = Vec::new();
        let script = names.find(|name| {
            let is_script = self.is_script(name, chain);
            before.extend((!is_script).then_some(*name));
            is_script
        })?;
        Some((script, before))
    }

    pub(super) fn is_script(&self, index: &str, chain: &Chain<'d>) -> bool {
        let path = format!("{}{index}", super::location::base_of(chain));
        let Some(location) = super::location::choose(&path, chain.server()) else {
            return false;
        };
        let inner = chain.at_server().inside(location);
        let passes = inner.own().iter().any(|directive| directive.name == "fastcgi_pass");
        passes && self.closed_by(&inner).is_none()
    }

    /// Checks that a `fastcgi_pass` can be converted.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn fastcgi_lost(&self, pass: &Directive, chain: &Chain<'d>) -> Result<(), String> {
        if answers::outer_alias(chain).is_some() {
            // Without a file, the folder does not matter.
            let is_known = script_file(chain).is_none_or(|file| match file {
                "$request_filename" => answers::Alias::of(chain).is_some(),
                file => !file.contains('$'),
            });
            if !is_known {
                return Err("an alias needs $request_filename as SCRIPT_FILENAME".to_owned());
            }
        }
        if let Some(why) = self.unsupported(pass.word(0)) {
            return Err(why);
        }
        // The application would run another script, or know less of its client.
        let is_lost = |param: &&&Directive| self.is_lost_param(param);
        match chain.list(&["fastcgi_param"]).iter().find(is_lost) {
            Some(param) => Err(format!("{param}: variables are not supported in this parameter")),
            None => Ok(()),
        }
    }

    /// Whether the application depends on a parameter that cannot be converted.
    fn is_lost_param(&self, param: &Directive) -> bool {
        let (name, given) = (param.word(0), param.word(1));
        match name {
            "SCRIPT_FILENAME" => given.contains('$') && folder(given).is_none(),
            // Other variables would not have the same value.
            "REMOTE_USER" | "AUTH_USER" | "PHP_VALUE" | "PHP_ADMIN_VALUE" => {
                values::unknown_variable(given, &self.maps).is_some()
            }
            _ => false,
        }
    }

    /// Converts one parameter of an upstream.
    pub(super) fn param(
        &mut self,
        param: &'d Directive,
        chain: &Chain<'d>,
        params: &mut Params,
        lines: &mut Lines,
    ) {
        let (name, given) = (param.word(0), param.word(1));
        if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
            return self.leave(param, "the name of a parameter has letters, digits and _", lines);
        }
        // Without this directive the script has the whole path.
        let is_whole = chain.find("fastcgi_split_path_info").is_none()
            && (name == "PATH_INFO" || !USUAL.iter().any(|(usual, _)| *usual == name));
        let whole = given.replace("$fastcgi_script_name", "$uri");
        let given = if is_whole { whole.as_str() } else { given };
        // Here it is the address of the connection.
        let has_proxies = chain.find("set_real_ip_from").is_some() && name == "REMOTE_ADDR";
        if !has_proxies && params.is_usual(name, given) {
            // The last one of a name applies, but for one that is left out if it is empty.
            if param.words.len() <= 2 {
                params.constants.retain(|(known, _)| known != name);
            }
            return self.fates.carried(param);
        }
        match (name, given.contains('$')) {
            // It is the folder.
            ("SCRIPT_FILENAME", true) => self.fates.carried(param),
            ("PATH_TRANSLATED", true)
                if given.ends_with("path_info") && values::variables(given).len() == 1 =>
            {
                self.fates.carried(param);
                let root = chain.word("root");
                let is_folder = given.starts_with("$document_root") && root.starts_with('/');
                if is_folder && !root.contains('$') && chain.find("fastcgi_split_path_info").is_none() {
                    params.constants.push((name.to_owned(), root.to_owned()));
                }
            }
            ("DOCUMENT_ROOT", false) if given.trim_end_matches('/') == params.root => {
                self.fates.carried(param);
            }
            ("DOCUMENT_ROOT", true) if ["$document_root", "$realpath_root"].contains(&given) => {
                self.fates.carried(param);
                let root = chain.word("root");
                if root.starts_with('/') && !root.contains('$') {
                    params.constants.push((name.to_owned(), root.to_owned()));
                }
            }
            (_, false) if given.is_empty() && param.words.len() > 2 => self.fates.carried(param),
            (_, false) => {
                self.fates.carried(param);
                params.constants.push((name.to_owned(), given.to_owned()));
            }
            (_, true) => match self.unsupported(given) {
                None if params.family == "fastcgi"
                    && (name, given) == ("REMOTE_USER", "$remote_user")
                    && !has_users(chain) =>
                {
                    // Nobody's password is verified here.
                    self.fates.carried(param);
                }
                None => {
                    self.fates.carried(param);
                    lines.setting(format!("request-param {} {}", text(name), text(given)));
                }
                Some(why) => self.leave(param, &why, lines),
            },
        }
    }
}

impl Scripts {
    fn setting(&self) -> String {
        let mut setting = format!("fastcgi-root {}", text(&self.root));
        if self.index != "index.php" {
            setting.push_str(&format!(" index={}", value(&self.index)));
        }
        if !self.has_front {
            setting.push_str(" front=off");
        }
        match self.split.as_deref() {
            Some(".php") => {}
            Some(split) => setting.push_str(&format!(" split={}", text(split))),
            None => setting.push_str(" split=off"),
        }
        if self.at != "/" {
            setting.push_str(&format!(" at={}", text(&self.at)));
        }
        setting
    }
}

/// The script that is run.
fn script_file<'d>(chain: &Chain<'d>) -> Option<&'d str> {
    let params = chain.list(&["fastcgi_param"]);
    params.iter().rev().find(|param| param.word(0) == "SCRIPT_FILENAME").map(|param| param.word(1))
}

fn scripts(chain: &Chain<'_>, path: Option<&Path>) -> Scripts {
    let named = script_file(chain);
    let alias = answers::Alias::of(chain).filter(|_| named == Some("$request_filename"));
    let (root, at) = match &alias {
        Some(alias) => (alias.folder, alias.at),
        None => (chain.word("root"), "/"),
    };
    let root = root.trim_end_matches('/');
    let is_page = named.is_some_and(|file| file.contains('$')) && path.is_some_and(names_no_file);
    let root = if is_page { NO_FOLDER } else { root };
    let root = if root.starts_with('/') && !root.contains('$') { root } else { NO_FOLDER };
    let index = chain.word("fastcgi_index");
    let index = match index {
        "" if named.is_none() => "off",
        index if index.is_empty() || index.contains(['/', '$']) => "index.php",
        index => index,
    };
    let (root, index) = match named {
        Some(file) if !file.contains('$') => match file.rsplit_once('/') {
            Some((folder, name)) if folder.starts_with('/') && !name.is_empty() => (folder, name),
            _ => (root, index),
        },
        Some(_) if is_page => (root, index),
        Some(given) => (folder(given).filter(|folder| folder.starts_with('/')).unwrap_or(root), index),
        None => (NO_FOLDER, index),
    };
    let split = match named {
        None => None,
        // One script for all paths.
        Some(file) if !file.contains('$') => Some(".php".to_owned()),
        _ if is_page => None,
        // A script whose whole path is there.
        Some(_) if chain.own().iter().any(tries_path) => None,
        Some(_) => ending(chain, path),
    };
    let has_front = named.is_some_and(|file| !file.contains('$'));
    Scripts { root: root.to_owned(), at: at.to_owned(), index: index.to_owned(), has_front, split }
}

/// Whether all paths of a location are pages of the application itself, such as its status, and no files of scripts: `/fpm-status`,
/// `^/(status|ping)$`.
fn names_no_file(path: &Path) -> bool {
    match (path.exact(), path.pattern()) {
        (Some(exact), _) => !exact.contains('.') && !exact.ends_with('/'),
        (None, Some((pattern, _))) => {
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-_()|?:".contains(&byte);
            let inner = pattern.strip_prefix("^/").and_then(|rest| rest.strip_suffix('$'));
            inner.is_some_and(|inner| inner.bytes().all(is_plain))
        }
        (None, None) => false,
    }
}

/// Whether passwords are verified here.
fn has_users(chain: &Chain<'_>) -> bool {
    !["", "off"].contains(&chain.word("auth_basic")) || chain.find("auth_request").is_some()
}

/// Whether it is `try_files $uri =404`.
fn tries_path(directive: &Directive) -> bool {
    directive.name == "try_files" && matches!(directive.texts()[..], ["$uri", last] if last.starts_with('='))
}

/// Whether it is `if (!-f $document_root$fastcgi_script_name) { return 404; }`.
pub(super) fn is_script_test(directive: &Directive) -> bool {
    let condition = directive.texts().join(" ");
    let is_missing = ["(!-f", "(!-e"].iter().any(|test| condition.starts_with(test));
    let only = match directive.inner() {
        [only] => only.name == "return" && only.word(0) == "404",
        _ => false,
    };
    directive.name == "if" && is_missing && condition.ends_with("$fastcgi_script_name)") && only
}

/// The folder of scripts whose name follows: `/var/www$fastcgi_script_name`.
fn folder(given: &str) -> Option<&str> {
    let names = ["$fastcgi_script_name", "${fastcgi_script_name}", "$uri", "$document_uri"];
    let folder = names.iter().find_map(|name| given.strip_suffix(name));
    match folder {
        Some("$realpath_root" | "$document_root") => Some(""),
        Some(folder) if !folder.contains('$') => Some(folder.trim_end_matches('/')),
        None if given == "$request_filename" => Some(""),
        _ => None,
    }
}

/// The end of names of scripts: of the expression that splits the path, or of the location.
fn ending(chain: &Chain<'_>, path: Option<&Path>) -> Option<String> {
    let expression = chain.word("fastcgi_split_path_info");
    let own = path.and_then(Path::pattern).map_or("", |(pattern, _)| pattern);
    [expression, own].into_iter().find_map(|pattern| {
        let at = pattern.find("\\.")?;
        let name: String = pattern[at + 2..].chars().take_while(char::is_ascii_alphanumeric).collect();
        (!name.is_empty()).then(|| format!(".{name}"))
    })
}
