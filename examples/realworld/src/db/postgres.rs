//! PostgreSQL: each worker has two connections. One pipelines the statements of all requests of the worker;
//! the other executes one transaction at a time. Neither needs a lock that another worker could hold.
//!
//! A connection that has broken is made anew by the next statement; while that fails, statements fail at once.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use flatout::Shutdown;
use flatout::engine::{BoxError, say};
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{Client, Config, NoTls};

use super::schema::CHANGES;
use super::{Fault, Row, Statement, Value};

/// How long it may take to connect.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(2);

/// After a failure to connect, statements fail immediately for this time.
const CONNECT_AGAIN: Duration = Duration::from_millis(250);

/// Maximum number of statements and transactions that wait on one worker; further requests get 503.
const WAITING_MAX: usize = 512;

/// A server, as all workers know it.
pub struct Server {
    config: Config,
    is_ready: AtomicBool,
    statement_time_max: Duration,
}

/// One worker's connections.
pub(super) struct Connections {
    server: Arc<Server>,
    statements: Connection,
    /// Taken turns with.
    transactions: Mutex<Connection>,
    waiting: Cell<usize>,
}

#[derive(Default)]
struct Connection {
    open: RefCell<Option<Rc<Open>>>,
    /// One makes it, the others wait.
    opening: Mutex<()>,
    refused_at: Cell<Option<Instant>>,
}

struct Open {
    client: Client,
    prepared: RefCell<HashMap<&'static str, tokio_postgres::Statement>>,
}

impl Server {
    /// # Errors
    /// The address is invalid.
    pub(super) fn new(url: &str, statement_time_max: Duration) -> Result<Server, BoxError> {
        let mut config: Config = url.parse()?;
        let options = format!("-c statement_timeout={}", statement_time_max.as_millis());
        config.options(&options).connect_timeout(CONNECT_TIME_MAX).application_name("realworld");
        Ok(Server { config, is_ready: AtomicBool::new(false), statement_time_max })
    }

    /// Makes the tables as soon as the server can be reached; once.
    pub(super) async fn migrate(&self, mut shutdown: Shutdown) {
        let mut said = None;
        while let Err(fault) = self.try_migrate().await {
            let fault = fault.to_string();
            // Once, and not four times a second.
            if said.as_ref() != Some(&fault) {
                say(format_args!("{fault}; trying again until it is"));
                said = Some(fault);
            }
            tokio::select! {
                () = sleep(CONNECT_AGAIN) => {}
                () = shutdown.begun() => return,
            }
        }
        self.is_ready.store(true, Ordering::Release);
        if said.is_some() {
            say(format_args!("the database is there"));
        }
    }

    async fn try_migrate(&self) -> Result<(), Fault> {
        let mut open = self.connect().await?;
        let made = async {
            let client = Rc::get_mut(&mut open).map(|open| &mut open.client);
            let Some(client) = client else { return Ok(()) };
            let transaction = client.transaction().await?;
            // Servers that start at the same time wait here.
            transaction.batch_execute("SELECT pg_advisory_xact_lock(7003); CREATE TABLE IF NOT EXISTS schema_changes (count BIGINT NOT NULL)").await?;
            let row = transaction.query_opt("SELECT count FROM schema_changes", &[]).await?;
            let count: i64 = row.map_or(0, |row| row.get(0));
            for change in CHANGES.iter().skip(usize::try_from(count).unwrap_or(0)) {
                transaction.batch_execute(change.postgres).await?;
            }
            transaction.execute("DELETE FROM schema_changes", &[]).await?;
            transaction.execute("INSERT INTO schema_changes VALUES ($1)", &[&(CHANGES.len() as i64)]).await?;
            transaction.commit().await
        };
        made.await.map_err(|error: tokio_postgres::Error| fault(&error))
    }

    async fn connect(&self) -> Result<Rc<Open>, Fault> {
        let connect = timeout(CONNECT_TIME_MAX, self.config.connect(NoTls));
        let (client, connection) = connect
            .await
            .map_err(|_| Fault::Unavailable(format!("no connection within {CONNECT_TIME_MAX:?}")))?
            .map_err(|error| Fault::Unavailable(error.to_string()))?;
        // The task ends when the client is dropped. If the connection ends first, pending statements fail.
        tokio::task::spawn_local(connection);
        Ok(Rc::new(Open { client, prepared: RefCell::default() }))
    }
}

impl Connection {
    /// The connection, made anew where it has broken.
    async fn open(&self, server: &Server) -> Result<Rc<Open>, Fault> {
        if let Some(open) = self.current() {
            return Ok(open);
        }
        let _opening = self.opening.lock().await;
        if let Some(open) = self.current() {
            return Ok(open);
        }
        if self.refused_at.get().is_some_and(|at| at.elapsed() < CONNECT_AGAIN) {
            return Err(Fault::Unavailable("it was not there a moment ago".to_owned()));
        }
        match server.connect().await {
            Ok(open) => {
                self.refused_at.set(None);
                *self.open.borrow_mut() = Some(open.clone());
                Ok(open)
            }
            Err(fault) => {
                self.refused_at.set(Some(Instant::now()));
                Err(fault)
            }
        }
    }

    fn current(&self) -> Option<Rc<Open>> {
        self.open.borrow().clone().filter(|open| !open.client.is_closed())
    }

    fn forget(&self) {
        self.open.borrow_mut().take();
    }
}

impl Open {
    async fn run(&self, (sql, parameters): &Statement) -> Result<Vec<Row>, tokio_postgres::Error> {
        let known = self.prepared.borrow().get(sql).cloned();
        let prepared = match known {
            Some(prepared) => prepared,
            None => {
                // As many as there are texts in the program.
                let prepared = self.client.prepare(sql).await?;
                self.prepared.borrow_mut().insert(sql, prepared.clone());
                prepared
            }
        };
        let parameters: Vec<&(dyn ToSql + Sync)> =
            parameters.iter().map(|value| value as &(dyn ToSql + Sync)).collect();
        let rows = self.client.query(&prepared, &parameters).await?;
        rows.iter().map(row).collect()
    }
}

impl Connections {
    /// Opened by the first statement.
    pub(super) fn new(server: Arc<Server>) -> Connections {
        Connections {
            server,
            statements: Connection::default(),
            transactions: Mutex::default(),
            waiting: Cell::new(0),
        }
    }

    /// The rows of one statement.
    ///
    /// # Errors
    /// Why there are none.
    pub(super) async fn rows(&self, statement: Statement) -> Result<Vec<Row>, Fault> {
        self.check_ready()?;
        let _waiting = Waiting::begin(&self.waiting)?;
        let run = async {
            let open = self.statements.open(&self.server).await?;
            open.run(&statement).await.map_err(|error| fault(&error))
        };
        match timeout(self.patience(), run).await {
            Ok(done) => done,
            Err(_) => {
                // The server should have ended the statement: the state of the pipeline is unknown.
                self.statements.forget();
                Err(Fault::Unavailable("no answer in time".to_owned()))
            }
        }
    }

    /// All of these or none.
    ///
    /// # Errors
    /// Why none of them was done.
    pub(super) async fn all(self: Rc<Self>, statements: Vec<Statement>) -> Result<(), Fault> {
        self.check_ready()?;
        // In a separate task, so that a client that disconnects leaves no transaction unfinished.
        let task = tokio::task::spawn_local(async move {
            let _waiting = Waiting::begin(&self.waiting)?;
            let transactions = self.transactions.lock().await;
            match timeout(self.patience(), transact(&transactions, &self.server, &statements)).await {
                Ok(done) => done,
                Err(_) => {
                    transactions.forget();
                    Err(Fault::Unavailable("no answer in time".to_owned()))
                }
            }
        });
        task.await.unwrap_or_else(|_| Err(Fault::Other("a transaction panicked".to_owned())))
    }

    fn check_ready(&self) -> Result<(), Fault> {
        match self.server.is_ready.load(Ordering::Acquire) {
            true => Ok(()),
            false => Err(Fault::Unavailable("it has not been there yet".to_owned())),
        }
    }

    fn patience(&self) -> Duration {
        CONNECT_TIME_MAX + self.server.statement_time_max * 2
    }
}

async fn transact(connection: &Connection, server: &Server, statements: &[Statement]) -> Result<(), Fault> {
    let open = connection.open(server).await?;
    let run = async {
        open.client.batch_execute("BEGIN").await?;
        for statement in statements {
            open.run(statement).await?;
        }
        open.client.batch_execute("COMMIT").await
    };
    match run.await {
        Ok(()) => Ok(()),
        Err(error) => {
            // Where that fails too, the connection is of no use, and the server rolls back.
            if open.client.batch_execute("ROLLBACK").await.is_err() {
                connection.forget();
            }
            Err(fault(&error))
        }
    }
}

/// A place among those who wait.
struct Waiting<'c>(&'c Cell<usize>);

impl Waiting<'_> {
    fn begin(count: &Cell<usize>) -> Result<Waiting<'_>, Fault> {
        if count.get() >= WAITING_MAX {
            return Err(Fault::Unavailable("too many statements wait".to_owned()));
        }
        count.set(count.get() + 1);
        Ok(Waiting(count))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

fn row(row: &tokio_postgres::Row) -> Result<Row, tokio_postgres::Error> {
    let values = row.columns().iter().enumerate().map(|(index, column)| {
        Ok(match *column.type_() {
            Type::INT8 => row.try_get::<_, Option<i64>>(index)?.into(),
            Type::BOOL => row.try_get::<_, Option<bool>>(index)?.map(i64::from).into(),
            Type::TEXT => row.try_get::<_, Option<String>>(index)?.into(),
            _ => Value::Null,
        })
    });
    values.collect::<Result<_, _>>().map(Row)
}

impl ToSql for Value {
    fn to_sql(&self, kind: &Type, out: &mut BytesMut) -> Result<IsNull, BoxError> {
        match self {
            Value::Null => Ok(IsNull::Yes),
            Value::Int(number) => number.to_sql_checked(kind, out),
            Value::Text(text) => text.to_sql_checked(kind, out),
        }
    }

    fn accepts(_: &Type) -> bool {
        // Each value knows that of itself.
        true
    }

    to_sql_checked!();
}

fn fault(error: &tokio_postgres::Error) -> Fault {
    match error.as_db_error() {
        // `users_email_key`
        Some(database) if *database.code() == SqlState::UNIQUE_VIOLATION => {
            let column = database.constraint().and_then(|name| name.split('_').nth(1)).unwrap_or("value");
            Fault::Taken(column.to_owned())
        }
        // The classes of lost connections, lack of resources, of operators' doing, and of retries.
        Some(database) => match database.code().code().get(..2) {
            Some("08" | "40" | "53" | "57" | "58") => Fault::Unavailable(database.to_string()),
            _ => Fault::Other(database.to_string()),
        },
        None => match std::error::Error::source(error) {
            // A value that is of another type is a defect of ours; anything else is the connection.
            Some(source) if source.is::<tokio_postgres::types::WrongType>() => {
                Fault::Other(error.to_string())
            }
            _ => Fault::Unavailable(error.to_string()),
        },
    }
}
