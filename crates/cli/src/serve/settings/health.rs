//! How an upstream finds out which of its servers are well: health checks, and comparisons with their siblings.

use std::time::Duration;

use flatout_proxy::{Active, HealthCheck, Outliers};

use crate::serve::options::ServeOptions;
use crate::serve::parse;
use crate::serve::values::{Refused, Values};
use crate::value;

pub(super) fn eject_outliers(options: &mut ServeOptions, given: &Values) -> Result<(), Refused> {
    let usual = Outliers::default();
    let outliers = Outliers {
        interval: given.read("interval", value::time)?.unwrap_or(usual.interval),
        requests_min: given.read("requests", parse::at_least_one::<u64>)?.unwrap_or(usual.requests_min),
        slow_times: given.read("slow", slow_times)?.unwrap_or(usual.slow_times),
        pause: given.read("pause", value::time)?.unwrap_or(usual.pause),
        pause_max: given.read("pause-max", value::time)?.unwrap_or(usual.pause_max),
    };
    for (key, time) in [("interval", outliers.interval), ("pause", outliers.pause)] {
        if time.is_zero() {
            return Err(Refused {
                key: Some(key),
                message: "got 0, need a time".to_owned(),
                ..Refused::default()
            });
        }
    }
    options.upstream.outliers = value::switch(given.text())?.then_some(outliers);
    Ok(())
}

fn slow_times(text: &str) -> Result<Option<f64>, String> {
    match text.parse::<f64>() {
        _ if text == "off" => Ok(None),
        Ok(times) if (1.1..=1000.0).contains(&times) => Ok(Some(times)),
        _ => Err(format!("got `{text}`, need a number from 1.1 to 1000 such as 3, or off")),
    }
}

pub(super) fn health_check(options: &mut ServeOptions, given: &Values) -> Result<(), Refused> {
    let path = given.text();
    if path == "off" {
        options.upstream.active = None;
        return Ok(());
    }
    let only = |keys: &[&'static str], kind: &str| match keys.iter().find(|key| given.key(key).is_some()) {
        Some(&key) => {
            let message = format!("`{key}=` is not for a check by {kind}");
            Err(Refused { key: Some(key), message, ..Refused::default() })
        }
        None => Ok(()),
    };
    let statuses = |text: &str| -> Result<Vec<_>, String> {
        text.split_ascii_whitespace().map(|text| parse::statuses(text, 100..=599)).collect()
    };
    let check = match path {
        "tcp" => {
            only(&["status", "body", "service"], "tcp")?;
            HealthCheck::Tcp
        }
        "grpc" => {
            only(&["status", "body"], "grpc")?;
            HealthCheck::Grpc { service: given.read("service", grpc_service)?.unwrap_or_default() }
        }
        _ => {
            only(&["service"], "http")?;
            HealthCheck::Http {
                path: path.to_owned(),
                statuses: given.read("status", statuses)?.unwrap_or_else(|| vec![200..=399]),
                body: given.key("body").unwrap_or_default().to_owned(),
            }
        }
    };
    let is_path = path.starts_with('/') || matches!(path, "tcp" | "grpc");
    if !is_path || path.bytes().any(|byte| !byte.is_ascii_graphic()) {
        return Err(format!("got `{path}`, need a path such as /health, tcp, grpc, or off").into());
    }
    let time = |name, usual: u64| -> Result<Duration, Refused> {
        Ok(given.read(name, value::time)?.unwrap_or(Duration::from_secs(usual)))
    };
    options.upstream.active = Some(Active {
        check,
        interval: time("interval", 5)?.max(Duration::from_millis(100)),
        time_max: time("timeout", 2)?,
        rise: given.read("rise", parse::at_least_one)?.unwrap_or(2),
        fall: given.read("fall", parse::at_least_one)?.unwrap_or(3),
    });
    Ok(())
}

fn grpc_service(text: &str) -> Result<String, String> {
    match text.len() {
        1..=127 => Ok(text.to_owned()),
        length => Err(format!("got {length} bytes, need the name of a service of up to 127")),
    }
}
