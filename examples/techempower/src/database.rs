//! Each worker's one connection, on which the statements of all its requests are pipelined.

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};

use futures_util::future::try_join_all;
use tokio::sync::OnceCell;
use tokio_postgres::{Client, Config, Error, NoTls, Statement};

use crate::{Fortune, WORLDS, World};

/// Where the database is.
pub type Settings = Config;

/// One worker's connection, made by its first request.
pub struct Database {
    settings: Settings,
    open: OnceCell<Open>,
    random: Cell<u64>,
}

struct Open {
    client: Client,
    world: Statement,
    fortunes: Statement,
    update: Statement,
}

impl Database {
    /// Not connected yet.
    pub fn new(settings: Settings) -> Database {
        // A generator must not begin with 0.
        let random = Cell::new(RandomState::new().hash_one(0) | 1);
        Database { settings, open: OnceCell::new(), random }
    }

    async fn open(&self) -> Result<&Open, Error> {
        self.open
            .get_or_try_init(async || {
                let (client, connection) = self.settings.connect(NoTls).await?;
                tokio::task::spawn_local(connection);
                let update = "UPDATE world SET randomnumber = new.number
                    FROM (SELECT unnest($1::int[]) AS id, unnest($2::int[]) AS number) AS new WHERE world.id = new.id";
                Ok(Open {
                    world: client.prepare("SELECT id, randomnumber FROM world WHERE id = $1").await?,
                    fortunes: client.prepare("SELECT id, message FROM fortune").await?,
                    update: client.prepare(update).await?,
                    client,
                })
            })
            .await
    }

    /// A random row.
    ///
    /// # Errors
    /// The database's.
    pub async fn world(&self) -> Result<World, Error> {
        let open = self.open().await?;
        let id = self.random_number();
        let row = open.client.query_one(&open.world, &[&id]).await?;
        Ok(World { id: row.try_get(0)?, random_number: row.try_get(1)? })
    }

    /// So many random rows, each by a statement of its own, all on their way at once.
    ///
    /// # Errors
    /// The database's.
    pub async fn worlds(&self, count: usize) -> Result<Vec<World>, Error> {
        try_join_all((0..count).map(|_| self.world())).await
    }

    /// So many random rows with new numbers, written back by one statement.
    ///
    /// # Errors
    /// The database's.
    pub async fn updated(&self, count: usize) -> Result<Vec<World>, Error> {
        let mut worlds = self.worlds(count).await?;
        for world in &mut worlds {
            world.random_number = self.random_number();
        }
        // In the same order by everybody, or two of them could wait for each other; and each row once.
        let mut changed = worlds.clone();
        changed.sort_by_key(|world| world.id);
        changed.dedup_by_key(|world| world.id);
        let ids: Vec<i32> = changed.iter().map(|world| world.id).collect();
        let numbers: Vec<i32> = changed.iter().map(|world| world.random_number).collect();
        let open = self.open().await?;
        open.client.execute(&open.update, &[&ids, &numbers]).await?;
        Ok(worlds)
    }

    /// All rows of `fortune`.
    ///
    /// # Errors
    /// The database's.
    pub async fn fortunes(&self) -> Result<Vec<Fortune>, Error> {
        let open = self.open().await?;
        let rows = open.client.query(&open.fortunes, &[]).await?;
        let fortune = |row: &tokio_postgres::Row| {
            Ok(Fortune { id: row.try_get(0)?, message: row.try_get::<_, String>(1)?.into() })
        };
        rows.iter().map(fortune).collect()
    }

    /// All rows of `world`.
    ///
    /// # Errors
    /// The database's.
    pub async fn all_worlds(&self) -> Result<Vec<World>, Error> {
        let rows = self.open().await?.client.query("SELECT id, randomnumber FROM world", &[]).await?;
        rows.iter().map(|row| Ok(World { id: row.try_get(0)?, random_number: row.try_get(1)? })).collect()
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

/// The tables as TechEmpower fills them.
pub const TABLES: &str = include_str!("../tables.sql");
