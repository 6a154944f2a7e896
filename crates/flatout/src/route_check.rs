//! What can be wrong with a route is reported when the application starts, not to its first client.

use std::any::TypeId;
use std::sync::Arc;

use flatout_wire::Method;
use flatout_wire::target::PathForm;
use matchit::InsertError;

use crate::scope::NestedScope;

/// A route as the arguments of its handler see it when the application starts; see [`Extract::check`](crate::Extract::check).
///
/// ```
/// use flatout::{Context, Extract, Problem, RouteCheck};
///
/// /// Whose page it is.
/// struct Owner;
///
/// impl Extract for Owner {
///     fn extract(_: &mut Context<'_>) -> Result<Owner, Problem> {
///         Ok(Owner)
///     }
///
///     fn check(route: &RouteCheck<'_>) -> Result<(), String> {
///         if !route.params().contains(&"owner") {
///             return Err("Owner needs a path parameter `owner`".to_owned());
///         }
///         match route.has_state::<u32>() || route.has_local::<u32>() {
///             true => Ok(()),
///             false => Err("Owner needs the state u32".to_owned()),
///         }
///     }
/// }
/// ```
pub struct RouteCheck<'a> {
    params: Vec<&'a str>,
    /// Never empty: the application's own is the first.
    places: &'a [Arc<NestedScope>],
}

impl<'a> RouteCheck<'a> {
    /// `pattern` is a route's, or the prefix of a fallback.
    pub(crate) fn new(pattern: &'a str, places: &'a [Arc<NestedScope>]) -> RouteCheck<'a> {
        RouteCheck { params: params(pattern), places }
    }

    /// The names of the path parameters, in their order.
    pub fn params(&self) -> &[&'a str] {
        &self.params
    }

    /// Whether handlers of the route get a [`State<T>`](crate::State).
    pub fn has_state<T: Send + Sync + 'static>(&self) -> bool {
        self.places.last().is_some_and(|place| place.state::<T>().is_some())
    }

    /// Whether handlers of the route get a [`Local<T>`](crate::Local).
    pub fn has_local<T: 'static>(&self) -> bool {
        let mut locals = self.places.iter().flat_map(|place| &place.scope.locals);
        locals.any(|(id, _)| *id == TypeId::of::<T>())
    }
}

/// The names in a pattern's braces. `{{` and `}}` are braces of the path itself.
fn params(pattern: &str) -> Vec<&str> {
    let (mut names, mut rest) = (Vec::new(), pattern);
    while let Some((_, tail)) = rest.split_once('{') {
        rest = match tail.strip_prefix('{') {
            Some(tail) => tail,
            None => {
                let (name, tail) = tail.split_once('}').unwrap_or((tail, ""));
                names.push(name.trim_start_matches('*'));
                tail
            }
        };
    }
    names
}

/// Why no request can match a pattern, and what to write instead.
///
/// # Errors
/// Says it.
pub(crate) fn reachable(pattern: &str, form: PathForm) -> Result<(), String> {
    if !pattern.starts_with('/') {
        return Err(format!("no path matches it, because paths start with a slash: write `/{pattern}`"));
    }
    if let Some(at) = pattern.find('?') {
        let instead = &pattern[..at];
        return Err(format!(
            "no path contains a query: write `{instead}`, and take `Query<T>` as an argument"
        ));
    }
    if let Some(at) = pattern.find('#') {
        return Err(format!("clients do not send what follows a `#`: write `{}`", &pattern[..at]));
    }
    if pattern.bytes().any(|byte| byte < 0x20 || byte == 0x7f || (byte == b'\\' && form == PathForm::Strict))
    {
        return Err("no path contains a backslash or a control character".to_owned());
    }
    if pattern.contains("//") {
        return Err("no path has an empty segment (`//`): remove a slash".to_owned());
    }
    for segment in pattern.split('/') {
        if matches!(segment, "." | "..") {
            return Err(format!("no path has a segment `{segment}`: write the path that it leads to"));
        }
        if segment == "*" {
            return Err("`*` is not a parameter here: write `{*rest}`".to_owned());
        }
        let name = segment.strip_prefix([':', '*']).filter(|name| is_name(name));
        if let Some(name) = name {
            let star = if segment.starts_with('*') { "*" } else { "" };
            return Err(format!("`{segment}` is not a parameter here: write `{{{star}{name}}}`"));
        }
    }
    Ok(())
}

/// Why the router refuses a pattern; follows its name in a message.
pub(crate) fn refusal(error: &InsertError) -> String {
    let fault = match error {
        InsertError::Conflict { with } => {
            return format!(" matches the same paths as `{with}`: use the same names for the parameters");
        }
        InsertError::InvalidParamSegment => {
            "a segment has one parameter at most: take it apart in the handler"
        }
        InsertError::InvalidParam => {
            "each `{` needs a name and a `}`; `{{` and `}}` are braces of the path itself"
        }
        InsertError::InvalidCatchAll => "`{*…}` takes the rest of the path, so it has to be the last",
        other => return format!(": {other}"),
    };
    format!(": {fault}")
}

fn is_name(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes.next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// `GET /items/{id}`, for messages.
pub(crate) fn route_name(method: Option<Method>, pattern: &str) -> String {
    match method {
        Some(method) => format!("route `{} {pattern}`", method.name()),
        None => format!("route `{pattern}`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_of_a_pattern() {
        assert_eq!(params("/a/{b}/c-{d}.{e}/{*f}"), ["b", "d", "e", "f"]);
        assert_eq!(params("/{{a}}/{b}"), ["b"]);
        assert_eq!(params("/a"), [""; 0]);
    }

    #[test]
    fn patterns_that_no_path_matches() {
        for (pattern, part) in [
            ("items", "write `/items`"),
            ("", "write `/`"),
            ("/items?page={page}", "write `/items`, and take `Query<T>`"),
            ("/items#top", "write `/items`"),
            ("/a//b", "empty segment"),
            ("/a/./b", "segment `.`"),
            ("/a/..", "segment `..`"),
            ("/items/:id", "write `{id}`"),
            ("/files/*rest", "write `{*rest}`"),
            ("/a\\b", "backslash"),
            ("/a\nb", "control character"),
        ] {
            let message = reachable(pattern, PathForm::Strict).unwrap_err();
            assert!(message.contains(part), "{pattern}: {message}");
        }
        for pattern in ["/", "/items/", "/items/{id}:archive", "/a.b/..c", "/é", "/100%", "/:1", "/**"] {
            assert_eq!(reachable(pattern, PathForm::Strict), Ok(()), "{pattern}");
        }
    }
}
