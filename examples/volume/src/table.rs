//! A table of comma-separated values as JSON: an array with an object for each row.

use std::fmt;
use std::io::{self, Read, Write};

use csv::ReaderBuilder;
use serde_json::{Map, Value};

/// Columns of a table.
pub const COLUMNS_MAX: usize = 1000;

/// Why there is no JSON.
#[derive(Debug)]
pub enum TableFault {
    /// The table has a mistake, for people.
    Table(String),
    /// The volume failed; the same table may succeed later.
    Volume(io::Error),
}

impl fmt::Display for TableFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TableFault::Table(why) => f.write_str(why),
            TableFault::Volume(error) => write!(f, "the volume: {error}"),
        }
    }
}

impl From<io::Error> for TableFault {
    fn from(error: io::Error) -> Self {
        TableFault::Volume(error)
    }
}

impl From<csv::Error> for TableFault {
    fn from(error: csv::Error) -> Self {
        match error.into_kind() {
            csv::ErrorKind::Io(error) => TableFault::Volume(error),
            csv::ErrorKind::Utf8 { pos, err } => {
                let line = pos.map_or(0, |pos| pos.line());
                TableFault::Table(format!("line {line}: field {} is not UTF-8", err.field() + 1))
            }
            csv::ErrorKind::UnequalLengths { pos, expected_len, len } => {
                let line = pos.map_or(0, |pos| pos.line());
                TableFault::Table(format!("line {line} has {len} fields; the first line has {expected_len}"))
            }
            other => TableFault::Table(format!("{other:?}")),
        }
    }
}

/// Writes a table as JSON, a row at a time, and returns the number of rows. The first line has the names of the columns. Numbers and
/// `true` and `false` are written as such, empty fields as `null`. The same table always gives the same bytes.
///
/// # Errors
/// The table has a mistake, or the volume failed.
pub fn write_json(table: impl Read, mut out: impl Write) -> Result<u64, TableFault> {
    let mut reader = ReaderBuilder::new().from_reader(table);
    let names: Vec<String> = reader.headers()?.iter().map(str::to_owned).collect();
    if names.is_empty() || names.iter().any(String::is_empty) {
        return Err(TableFault::Table("line 1: a column has no name".to_owned()));
    }
    if names.len() > COLUMNS_MAX {
        let why = format!("the table has {} columns; {COLUMNS_MAX} are allowed", names.len());
        return Err(TableFault::Table(why));
    }
    if let Some(name) =
        names.iter().enumerate().find_map(|(at, name)| names[..at].contains(name).then_some(name))
    {
        return Err(TableFault::Table(format!("line 1: two columns have the name {name:?}")));
    }
    let mut rows = 0;
    out.write_all(b"[")?;
    for record in reader.records() {
        let row: Map<String, Value> = names.iter().cloned().zip(record?.iter().map(value)).collect();
        out.write_all(if rows == 0 { b"\n" } else { b",\n" })?;
        serde_json::to_writer(&mut out, &row).map_err(io::Error::from)?;
        rows += 1;
    }
    out.write_all(b"\n]\n")?;
    Ok(rows)
}

/// A field as JSON. Numbers that JSON would write differently stay text: `007`, `1e400`, `+5`.
fn value(field: &str) -> Value {
    match field {
        "" => Value::Null,
        "true" => Value::Bool(true),
        "false" => Value::Bool(false),
        text => match serde_json::from_str::<Value>(text) {
            Ok(Value::Number(number)) if number.to_string() == text => Value::Number(number),
            _ => Value::String(text.to_owned()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(table: &str) -> Result<Value, String> {
        let mut out = Vec::new();
        write_json(table.as_bytes(), &mut out).map_err(|fault| fault.to_string())?;
        Ok(serde_json::from_slice(&out).unwrap())
    }

    #[test]
    fn fields_have_their_types() {
        let table = "name,price,sold\n\"Smith, \"\"Jo\"\"\",1.5,true\nx,007,\n";
        let expected = serde_json::json!([
            {"name": "Smith, \"Jo\"", "price": 1.5, "sold": true},
            {"name": "x", "price": "007", "sold": null},
        ]);
        assert_eq!(json(table).unwrap(), expected);
        assert_eq!(json("a,b\n").unwrap(), serde_json::json!([]));
    }

    #[test]
    fn mistakes_name_their_line() {
        for (table, why) in [
            ("", "line 1: a column has no name"),
            ("a,\n1,2\n", "line 1: a column has no name"),
            ("a,b,a\n", "line 1: two columns have the name \"a\""),
            ("a,b\n1,2\n1\n", "line 3 has 1 fields; the first line has 2"),
        ] {
            assert_eq!(json(table).unwrap_err(), why, "{table:?}");
        }
        let mut out = Vec::new();
        let fault = write_json(&b"a\n1\n\xff\n"[..], &mut out).unwrap_err();
        assert_eq!(fault.to_string(), "line 3: field 1 is not UTF-8");
    }
}
