//! The actors that may have something to do.

/// The actors that may have something to do. The next one is drawn at random.
pub(super) struct Awake {
    actors: Vec<usize>,
    /// The index of each actor in `actors`.
    places: Vec<Option<usize>>,
}

impl Awake {
    pub(super) fn new(actors: usize) -> Awake {
        Awake { actors: (0..actors).collect(), places: (0..actors).map(Some).collect() }
    }

    pub(super) fn draw(&self, random: &mut fastrand::Rng) -> Option<usize> {
        random.choice(&self.actors).copied()
    }

    pub(super) fn wake(&mut self, actor: usize) {
        if self.places[actor].is_none() {
            self.places[actor] = Some(self.actors.len());
            self.actors.push(actor);
        }
    }

    pub(super) fn wake_all(&mut self) {
        (0..self.places.len()).for_each(|actor| self.wake(actor));
    }

    pub(super) fn sleep(&mut self, actor: usize) {
        let Some(place) = self.places[actor].take() else { return };
        self.actors.swap_remove(place);
        if let Some(moved) = self.actors.get(place) {
            self.places[*moved] = Some(place);
        }
    }
}
