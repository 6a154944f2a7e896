//! Arguments whose values are checked.

use std::ops::Deref;

use flatout_wire::Status;
use garde::Validate;
use serde_json::{Value, json};

use super::{BodyUse, Extract};
use crate::{Context, Problem, RouteCheck};

/// Another argument, such as [`Json`](crate::Json), [`Form`](crate::Form) or [`Query`](crate::Query), whose value is
/// checked by the `garde` rules of its type.
///
/// # Errors
/// Those of the other argument; 422 with each invalid field in the member `errors`.
///
/// ```
/// use flatout::{App, Json, Validated, test::Client};
///
/// #[derive(serde::Deserialize, garde::Validate)]
/// struct Signup {
///     #[garde(length(min = 2, max = 20))]
///     name: String,
///     #[garde(range(min = 18))]
///     age: u8,
/// }
///
/// let app = App::new().post("/", |Validated(Json(signup)): Validated<Json<Signup>>| signup.name);
/// let answer = Client::new(app)?.post("/").json(&serde_json::json!({"name": "ada", "age": 7})).send();
/// assert_eq!(answer.status().code(), 422);
/// assert_eq!(answer.json::<serde_json::Value>()["errors"][0]["field"], "age");
/// # Ok::<(), flatout::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Validated<E>(pub E);

impl<E> Deref for Validated<E> {
    type Target = E;

    fn deref(&self) -> &E {
        &self.0
    }
}

impl<E> Extract for Validated<E>
where
    E: Extract + Deref,
    E::Target: Validate,
    <E::Target as Validate>::Context: Default,
{
    const BODY: BodyUse = E::BODY;

    fn extract(context: &mut Context<'_>) -> Result<Self, Problem> {
        let inner = E::extract(context)?;
        let Err(report) = inner.validate() else { return Ok(Validated(inner)) };
        let errors: Vec<Value> = report
            .iter()
            .map(|(field, fault)| json!({"field": field.to_string(), "message": fault.message()}))
            .collect();
        let detail = "some fields are invalid";
        Err(Problem::new(Status::UNPROCESSABLE_CONTENT).detail(detail).member("errors", errors))
    }

    fn check(route: &RouteCheck<'_>) -> Result<(), String> {
        E::check(route)
    }
}
