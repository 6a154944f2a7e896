//! The queries of the tests.

use std::cell::{Cell, RefCell};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::rc::Rc;

use tokio::sync::Mutex;

use crate::pg::{Connection, Rows};
use crate::{ADDED, Fortune, WORLDS, World};

/// Where the database is.
pub type Settings = tokio_postgres::Config;

/// Prepared by each connection; each has its place as a name.
const STATEMENTS: [&str; 4] = [
    "SELECT id, randomnumber FROM world WHERE id = $1",
    "SELECT id, message FROM fortune",
    "UPDATE world SET randomnumber = new.number
        FROM (SELECT unnest($1::int[]) AS id, unnest($2::int[]) AS number) AS new WHERE world.id = new.id",
    "SELECT id, randomnumber FROM world",
];
const ONE_WORLD: u8 = b'a';
const FORTUNES: u8 = b'b';
const UPDATE: u8 = b'c';
const ALL_WORLDS: u8 = b'd';

/// One worker's connection, made by its first request, and made anew where it has broken.
pub struct Database {
    settings: Settings,
    open: RefCell<Option<Rc<Connection>>>,
    /// One makes it, the others wait.
    opening: Mutex<()>,
    random: Cell<u64>,
}

impl Database {
    /// Not connected yet.
    pub fn new(settings: Settings) -> Database {
        // A generator must not begin with 0.
        let random = Cell::new(RandomState::new().hash_one(0) | 1);
        Database { settings, open: RefCell::default(), opening: Mutex::default(), random }
    }

    async fn open(&self) -> io::Result<Rc<Connection>> {
        if let Some(open) = self.current() {
            return Ok(open);
        }
        let _opening = self.opening.lock().await;
        if let Some(open) = self.current() {
            return Ok(open);
        }
        let open = Rc::new(Connection::open(&self.settings, &STATEMENTS).await?);
        *self.open.borrow_mut() = Some(open.clone());
        Ok(open)
    }

    fn current(&self) -> Option<Rc<Connection>> {
        self.open.borrow().as_ref().filter(|open| !open.is_closed()).cloned()
    }

    /// A random row.
    ///
    /// # Errors
    /// The database's.
    pub async fn world(&self) -> io::Result<World> {
        self.worlds(1).await?.pop().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// `count` random rows, each by a separate statement, all pipelined.
    ///
    /// # Errors
    /// The database's.
    pub async fn worlds(&self, count: usize) -> io::Result<Vec<World>> {
        let open = self.open().await?;
        let asked =
            open.ask(|statements| (0..count).for_each(|_| statements.int(ONE_WORLD, self.random_number())));
        worlds(&asked.await?)
    }

    /// `count` random rows with new numbers, written back by one statement.
    ///
    /// # Errors
    /// The database's.
    pub async fn updated(&self, count: usize) -> io::Result<Vec<World>> {
        let mut worlds = self.worlds(count).await?;
        for world in &mut worlds {
            world.random_number = self.random_number();
        }
        // In the same order by everybody, or two of them could wait for each other; and each row once.
        let mut changed = worlds.clone();
        changed.sort_unstable_by_key(|world| world.id);
        changed.dedup_by_key(|world| world.id);
        let ids: Vec<i32> = changed.iter().map(|world| world.id).collect();
        let numbers: Vec<i32> = changed.iter().map(|world| world.random_number).collect();
        self.open().await?.ask(|statements| statements.arrays(UPDATE, &ids, &numbers)).await?;
        Ok(worlds)
    }

    /// All rows of `fortune` and the one that is added, sorted, as `show` wants them.
    ///
    /// # Errors
    /// The database's.
    pub async fn fortunes<T>(&self, show: impl FnOnce(Vec<Fortune<'_>>) -> T) -> io::Result<T> {
        let rows = self.open().await?.ask(|statements| statements.none(FORTUNES)).await?;
        let mut fortunes = rows.read(|row| Some(Fortune { id: row.int()?, message: row.text()? }))?;
        fortunes.push(Fortune { id: 0, message: ADDED });
        fortunes.sort_unstable_by_key(|fortune| fortune.message);
        Ok(show(fortunes))
    }

    /// All rows of `world`.
    ///
    /// # Errors
    /// The database's.
    pub async fn all_worlds(&self) -> io::Result<Vec<World>> {
        worlds(&self.open().await?.ask(|statements| statements.none(ALL_WORLDS)).await?)
    }

    /// From 1 to the number of rows.
    fn random_number(&self) -> i32 {
        self.random_index(WORLDS as usize) as i32 + 1
    }

    /// Below `count`.
    pub fn random_index(&self, count: usize) -> usize {
        // xorshift64 (Marsaglia 2003): no secret hangs on it.
        let mut x = self.random.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.random.set(x);
        (x >> 11) as usize % count.max(1)
    }
}

fn worlds(rows: &Rows) -> io::Result<Vec<World>> {
    rows.read(|row| Some(World { id: row.int()?, random_number: row.int()? }))
}

/// The tables as TechEmpower fills them.
pub const TABLES: &str = include_str!("../tables.sql");
