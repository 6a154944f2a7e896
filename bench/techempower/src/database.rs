//! One connection, on which the statements of all requests are pipelined.

use std::pin::pin;

use futures_util::stream::{StreamExt, FuturesUnordered, TryStreamExt};
use tokio_postgres::{Client, Error, NoTls, Statement};

use crate::fortunes::{self, Fortune};

#[derive(Clone, Copy, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct World {
    pub id: i32,
    pub random_number: i32,
}

pub struct Database {
    client: Client,
    world: Statement,
    fortunes: Statement,
    update: Statement,
    cache: Vec<World>,
}

pub fn random_number() -> i32 {
    fastrand::i32(1..=10_000)
}

impl Database {
    /// Must be called on the runtime that serves.
    pub async fn connect() -> Result<Database, Box<dyn std::error::Error>> {
        let (client, connection) = tokio_postgres::connect(&std::env::var("DATABASE_URL")?, NoTls).await?;
        tokio::task::spawn(connection);
        let rows = client.query("SELECT id, randomnumber FROM world", &[]).await?;
        Ok(Database {
            world: client.prepare("SELECT id, randomnumber FROM world WHERE id = $1").await?,
            fortunes: client.prepare("SELECT id, message FROM fortune").await?,
            update: client
                .prepare(
                    "UPDATE world SET randomnumber = new.number
                     FROM (SELECT unnest($1::int[]) AS id, unnest($2::int[]) AS number) AS new WHERE world.id = new.id",
                )
                .await?,
            cache: rows.iter().map(|row| World { id: row.get(0), random_number: row.get(1) }).collect(),
            client,
        })
    }

    pub async fn world(&self) -> Result<World, Error> {
        let rows = pin!(self.client.query_raw(&self.world, &[random_number()]).await?);
        let row = rows.into_future().await.0.expect("a row of each number")?;
        Ok(World { id: row.get(0), random_number: row.get(1) })
    }

    pub async fn worlds(&self, count: usize) -> Result<Vec<World>, Error> {
        (0..count).map(|_| self.world()).collect::<FuturesUnordered<_>>().try_collect().await
    }

    pub async fn updated(&self, count: usize) -> Result<Vec<World>, Error> {
        let mut worlds = self.worlds(count).await?;
        worlds.iter_mut().for_each(|world| world.random_number = random_number());
        let mut changed = worlds.clone();
        changed.sort_by_key(|world| world.id);
        changed.dedup_by_key(|world| world.id);
        let ids: Vec<i32> = changed.iter().map(|world| world.id).collect();
        let numbers: Vec<i32> = changed.iter().map(|world| world.random_number).collect();
        self.client.execute(&self.update, &[&ids, &numbers]).await?;
        Ok(worlds)
    }

    pub fn cached(&self, count: usize) -> Vec<World> {
        (0..count).map(|_| self.cache[fastrand::usize(..self.cache.len())]).collect()
    }

    pub async fn fortunes(&self) -> Result<String, Error> {
        let mut rows = pin!(self.client.query_raw::<_, i32, _>(&self.fortunes, []).await?);
        let mut fortunes = Vec::with_capacity(16);
        while let Some(row) = rows.try_next().await? {
            fortunes.push(Fortune { id: row.get(0), message: row.get::<_, String>(1) });
        }
        Ok(fortunes::page(fortunes))
    }
}
