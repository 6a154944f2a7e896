//! One connection, on which the statements of all requests are pipelined.

use askama::Template;
use futures_util::future::try_join_all;
use tokio_postgres::{Client, Error, NoTls, Statement};

#[derive(Clone, Copy, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct World {
    pub id: i32,
    pub random_number: i32,
}

pub struct Fortune {
    pub id: i32,
    pub message: String,
}

#[derive(Template)]
#[template(path = "fortunes.html")]
struct Fortunes {
    fortunes: Vec<Fortune>,
}

pub struct Database {
    client: Client,
    world: Statement,
    fortunes: Statement,
    update: Statement,
    cache: Vec<World>,
}

fn random_number() -> i32 {
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
        let row = self.client.query_one(&self.world, &[&random_number()]).await?;
        Ok(World { id: row.get(0), random_number: row.get(1) })
    }

    pub async fn worlds(&self, count: usize) -> Result<Vec<World>, Error> {
        try_join_all((0..count).map(|_| self.world())).await
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
        let rows = self.client.query(&self.fortunes, &[]).await?;
        let mut fortunes: Vec<Fortune> =
            rows.iter().map(|row| Fortune { id: row.get(0), message: row.get(1) }).collect();
        fortunes.push(Fortune { id: 0, message: "Additional fortune added at request time.".to_owned() });
        fortunes.sort_by(|one, other| one.message.cmp(&other.message));
        Ok(Fortunes { fortunes }.render().unwrap_or_default())
    }
}
