//! The ACME account: created once, and kept in the state folder.

use instant_acme::{Account, AccountCredentials, Error, NewAccount};

use super::account_name;
use super::fault::Fault;
use super::keep::Shared;
use crate::Level;

/// Loads the account from the folder, or creates one. Only one process at a time may call this.
pub(super) async fn open(shared: &Shared) -> Result<Account, Fault> {
    let name = account_name(&shared.plan.directory);
    if let Some(text) = shared.state.read(&name).map_err(Fault::Here)? {
        match restore(shared, &text).await {
            Err(Error::Json(_) | Error::KeyRejected | Error::Crypto) => {
                let aside = shared.state.put_aside(&name).map_err(Fault::Here)?;
                let aside = aside.display();
                (shared.say)(
                    Level::Warning,
                    format_args!(
                        "the ACME account is broken: it was renamed to {aside}, and a new one is created"
                    ),
                );
            }
            restored => return Ok(restored?),
        }
    }
    let contact: Vec<String> =
        shared.plan.contact.iter().map(|address| format!("mailto:{address}")).collect();
    let contact: Vec<&str> = contact.iter().map(String::as_str).collect();
    let new = NewAccount { contact: &contact, terms_of_service_agreed: true, only_return_existing: false };
    let builder = Account::builder_with_http(Box::new(shared.http.clone()));
    let (account, credentials) = builder.create(&new, shared.plan.directory.clone(), None).await?;
    let text = serde_json::to_string(&credentials).map_err(Error::Json)?;
    shared.state.write(&name, &text).map_err(Fault::Here)?;
    Ok(account)
}

/// Deletes an account that the CA no longer knows.
pub(super) fn forget(shared: &Shared) {
    let _ = shared.state.put_aside(&account_name(&shared.plan.directory));
}

async fn restore(shared: &Shared, text: &str) -> Result<Account, Error> {
    let credentials: AccountCredentials = match serde_json::from_str(text) {
        Ok(credentials) => credentials,
        Err(error) => return Err(Error::Json(error)),
    };
    let builder = Account::builder_with_http(Box::new(shared.http.clone()));
    match builder.from_credentials(credentials).await {
        // The file was valid: the CA sent the JSON that cannot be parsed.
        Err(Error::Json(_)) => Err(Error::Str("its directory is invalid")),
        restored => restored,
    }
}
