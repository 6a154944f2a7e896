//! The `{names}` of a route as an argument.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;

use flatout_wire::Status;
use flatout_wire::target::{PathForm, decode_component};
use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{DeserializeOwned, Deserializer, Error as _, IntoDeserializer, Visitor};
use serde::forward_to_deserialize_any;

use super::fault::expected_value;
use super::{Extract, param_check};
use crate::{Context, Problem, RouteCheck};

/// The `{names}` of the route, decoded: one value for one name, a tuple in their order, or a struct by name.
///
/// # Errors
/// 400 if a value cannot be parsed as its type. A number of parameters, or a name, that the type does not have is an error
/// when the application starts.
///
/// ```
/// use flatout::{App, Path, Status, test::Client};
///
/// #[derive(serde::Deserialize)]
/// struct Comment {
///     article: String,
///     number: u32,
/// }
///
/// let app = App::new()
///     .get("/items/{id}", |Path(id): Path<u32>| format!("item {id}"))
///     .get("/sum/{a}/{b}", |Path((a, b)): Path<(u32, u32)>| (a + b).to_string())
///     .get("/articles/{article}/comments/{number}", |Path(comment): Path<Comment>| {
///         format!("{} of {}", comment.number, comment.article)
///     })
///     .get("/files/{*rest}", |Path(rest): Path<String>| rest);
/// let client = Client::new(app)?;
/// assert_eq!(client.get("/items/7").send().text(), "item 7");
/// assert_eq!(client.get("/items/seven").send().status(), Status::BAD_REQUEST);
/// assert_eq!(client.get("/sum/1/2").send().text(), "3");
/// assert_eq!(client.get("/articles/dragons/comments/4").send().text(), "4 of dragons");
/// assert_eq!(client.get("/files/a/b.txt").send().text(), "a/b.txt");
/// # Ok::<(), flatout::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Path<T>(pub T);

impl<T> Deref for Path<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: DeserializeOwned> Extract for Path<T> {
    fn extract(context: &mut Context<'_>) -> Result<Self, Problem> {
        let form = context.path_form;
        let pairs: Vec<(&str, Cow<'_, str>)> =
            context.params.iter().map(|(name, value)| (name, decoded(value, form))).collect();
        let pairs: Vec<(&str, &str)> = pairs.iter().map(|(name, value)| (*name, &**value)).collect();
        T::deserialize(Params(&pairs)).map(Path).map_err(|Fault(message)| {
            Problem::new(Status::BAD_REQUEST).detail(format!("the path: {message}"))
        })
    }

    fn check(route: &RouteCheck<'_>) -> Result<(), String> {
        param_check::fits::<T>(route.params()).map_err(|message| {
            let there = match route.params() {
                [] => "none".to_owned(),
                names => format!("`{}`", names.join("`, `")),
            };
            format!("`Path<{}>` {message}, but the route has {there}", std::any::type_name::<T>())
        })
    }
}

/// The value of a parameter without the escapes that this path form keeps.
fn decoded(value: &str, form: PathForm) -> Cow<'_, str> {
    if form == PathForm::Strict || !value.contains('%') {
        return Cow::Borrowed(value);
    }
    let bytes = decode_component(value.as_bytes(), false);
    bytes.and_then(|bytes| String::from_utf8(bytes).ok()).map_or(Cow::Borrowed(value), Cow::Owned)
}

/// All parameters of a route.
struct Params<'de>(&'de [(&'de str, &'de str)]);

/// One parameter: its name, for messages, and its value.
struct Param<'de>(&'de str, &'de str);

#[derive(Debug)]
struct Fault(String);

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Fault {}

impl serde::de::Error for Fault {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Fault(message.to_string())
    }
}

impl<'de> Params<'de> {
    fn only(&self) -> Result<Param<'de>, Fault> {
        match self.0 {
            [(name, value)] => Ok(Param(name, value)),
            all => Err(Fault::custom(format_args!("expected one parameter, the route has {}", all.len()))),
        }
    }

    fn sequence(&self) -> impl Iterator<Item = Param<'de>> {
        self.0.iter().map(|(name, value)| Param(name, value))
    }
}

macro_rules! forward_to_only {
    ($($method:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
            self.only()?.$method(visitor)
        }
    )*};
}

impl<'de> Deserializer<'de> for Params<'de> {
    type Error = Fault;

    forward_to_only! {
        deserialize_bool deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_i128
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128 deserialize_f32
        deserialize_f64 deserialize_char deserialize_str deserialize_string deserialize_bytes
        deserialize_byte_buf deserialize_option deserialize_identifier
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.deserialize_map(visitor)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        visitor.visit_unit()
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        visitor.visit_unit()
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        visitor.visit_seq(SeqDeserializer::new(self.sequence()))
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, length: usize, visitor: V) -> Result<V::Value, Fault> {
        if length != self.0.len() {
            let count = self.0.len();
            return Err(Fault::custom(format_args!("expected {length} parameters, the route has {count}")));
        }
        self.deserialize_seq(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        self.deserialize_tuple(length, visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        let pairs = self.0.iter().map(|(name, value)| (*name, Param(name, value)));
        visitor.visit_map(MapDeserializer::new(pairs))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        self.deserialize_map(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        self.only()?.deserialize_enum(name, variants, visitor)
    }
}

impl<'de> IntoDeserializer<'de, Fault> for Param<'de> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

macro_rules! parsed {
    ($($method:ident $visit:ident $type:ty;)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
            let Param(name, value) = self;
            let wanted = expected_value(stringify!($type)).unwrap_or_default();
            let fault = |_| Fault::custom(format_args!("`{name}`: got `{value}`, expected {wanted}"));
            visitor.$visit(value.parse::<$type>().map_err(fault)?)
        }
    )*};
}

impl<'de> Deserializer<'de> for Param<'de> {
    type Error = Fault;

    parsed! {
        deserialize_bool visit_bool bool;
        deserialize_i8 visit_i8 i8;
        deserialize_i16 visit_i16 i16;
        deserialize_i32 visit_i32 i32;
        deserialize_i64 visit_i64 i64;
        deserialize_i128 visit_i128 i128;
        deserialize_u8 visit_u8 u8;
        deserialize_u16 visit_u16 u16;
        deserialize_u32 visit_u32 u32;
        deserialize_u64 visit_u64 u64;
        deserialize_u128 visit_u128 u128;
        deserialize_f32 visit_f32 f32;
        deserialize_f64 visit_f64 f64;
        deserialize_char visit_char char;
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        visitor.visit_borrowed_str(self.1)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        visitor.visit_enum(self.1.into_deserializer())
    }

    forward_to_deserialize_any! {
        str string bytes byte_buf unit unit_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}
