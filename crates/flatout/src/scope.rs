//! The surroundings of an application's handlers: middleware, state, limits.
//!
//! A nested application keeps its scope. The scope has a place inside the outer one: values of the outer application are
//! found there too, unless the inner one has a value of the same type.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use flatout_engine::{Lane, Response, Worker};
use tokio::sync::watch;

use crate::Context;
use crate::chain::Answered;
use crate::extract::Network;
use crate::middleware::Middleware;
use crate::ready::Spares;
use crate::routes::Routes;

/// Returns whether to continue; if not, it has written the response.
pub(crate) type Before = Box<dyn Fn(&mut Context<'_>, &mut Response) -> bool + Send + Sync>;
pub(crate) type After = Box<dyn Fn(&Answered<'_>, &mut Response) + Send + Sync>;

/// Makes one worker's value of a type.
pub(crate) type MakeLocal = (TypeId, Box<dyn Fn() -> Rc<dyn Any> + Send + Sync>);

type States = HashMap<TypeId, Arc<dyn Any + Send + Sync>>;
type Locals = HashMap<TypeId, Rc<dyn Any>>;

/// The settings of one application for its handlers.
#[derive(Default)]
pub(crate) struct Scope {
    /// Outermost first.
    pub(crate) wraps: Vec<Arc<dyn Middleware>>,
    pub(crate) before: Vec<Before>,
    pub(crate) after: Vec<After>,
    pub(crate) body_bytes_max: Option<u64>,
    /// Trusted proxies; `None` means those of the outer application.
    pub(crate) trusted: Option<Vec<Network>>,
    /// The cache for responses of other servers; `None` means that of the outer application.
    #[cfg(feature = "proxy")]
    pub(crate) cache: Option<crate::reverse_proxy::Cached>,
    pub(crate) states: States,
    pub(crate) locals: Vec<MakeLocal>,
}

/// A scope at its place among others.
pub(crate) struct NestedScope {
    pub(crate) scope: Arc<Scope>,
    /// Its own states, and the outer ones that it has not replaced.
    states: Arc<States>,
    trusted: Arc<[Network]>,
    #[cfg(feature = "proxy")]
    cache: Option<crate::reverse_proxy::Cached>,
    /// Among the places.
    index: usize,
    outer: Option<usize>,
}

/// The places of an application, each after the one around it.
#[derive(Default)]
pub(crate) struct ScopeList(Vec<Arc<NestedScope>>);

/// The values of one worker.
pub(crate) struct WorkerLocal {
    /// By the index of the place.
    places: Vec<Rc<Locals>>,
    pub(crate) draining: watch::Receiver<bool>,
    /// `None` in a test without a server.
    worker: Option<Worker>,
    pub(crate) spares: Spares,
    pub(crate) routes: Arc<Routes>,
    own: Weak<WorkerLocal>,
}

impl ScopeList {
    /// The places of a chain of scopes, outermost first.
    pub(crate) fn of(&mut self, chain: impl IntoIterator<Item = Arc<Scope>>) -> Vec<Arc<NestedScope>> {
        let mut places: Vec<Arc<NestedScope>> = Vec::new();
        for scope in chain {
            places.push(self.place(places.last().cloned(), scope));
        }
        places
    }

    fn place(&mut self, outer: Option<Arc<NestedScope>>, scope: Arc<Scope>) -> Arc<NestedScope> {
        // An application is nested once, so its scope has one place.
        if let Some(known) = self.0.iter().find(|place| Arc::ptr_eq(&place.scope, &scope)) {
            return known.clone();
        }
        let states = match &outer {
            Some(outer) if scope.states.is_empty() => outer.states.clone(),
            Some(outer) => {
                let mut states = (*outer.states).clone();
                states.extend(scope.states.iter().map(|(id, value)| (*id, value.clone())));
                Arc::new(states)
            }
            None => Arc::new(scope.states.clone()),
        };
        let trusted = match (&scope.trusted, &outer) {
            (Some(trusted), _) => trusted.as_slice().into(),
            (None, Some(outer)) => outer.trusted.clone(),
            (None, None) => Arc::default(),
        };
        #[cfg(feature = "proxy")]
        let cache = scope.cache.clone().or_else(|| outer.as_ref()?.cache.clone());
        let outer = outer.map(|outer| outer.index);
        let place = Arc::new(NestedScope {
            scope,
            states,
            trusted,
            #[cfg(feature = "proxy")]
            cache,
            index: self.0.len(),
            outer,
        });
        self.0.push(place.clone());
        place
    }

    /// Makes one worker's values.
    pub(crate) fn worker(
        &self,
        routes: Arc<Routes>,
        draining: watch::Receiver<bool>,
        worker: Option<Worker>,
    ) -> Rc<WorkerLocal> {
        let mut places: Vec<Rc<Locals>> = Vec::with_capacity(self.0.len());
        for place in &self.0 {
            let outer = place.outer.and_then(|index| places.get(index)).cloned().unwrap_or_default();
            let made = &place.scope.locals;
            if made.is_empty() {
                places.push(outer);
                continue;
            }
            let mut locals = (*outer).clone();
            locals.extend(made.iter().map(|(id, make)| (*id, make())));
            places.push(Rc::new(locals));
        }
        Rc::new_cyclic(|own| WorkerLocal {
            places,
            draining,
            worker,
            spares: Spares::default(),
            routes,
            own: own.clone(),
        })
    }
}

impl NestedScope {
    pub(crate) fn trusted(&self) -> &[Network] {
        &self.trusted
    }

    #[cfg(feature = "proxy")]
    pub(crate) fn cache(&self) -> Option<&crate::reverse_proxy::Cached> {
        self.cache.as_ref()
    }

    pub(crate) fn state<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        self.states.get(&TypeId::of::<T>())?.clone().downcast().ok()
    }
}

impl WorkerLocal {
    /// For values that outlive a request's turn.
    ///
    /// # Panics
    /// Never: every reference comes from its only owner.
    pub(crate) fn own(&self) -> Rc<WorkerLocal> {
        self.own.upgrade().expect("it is borrowed from its owner")
    }

    /// `None` in a test without a server.
    pub(crate) fn lane(&self) -> Option<&Lane> {
        self.worker.as_ref().map(|worker| &worker.lane)
    }

    /// The same.
    pub(crate) fn worker(&self) -> Option<&Worker> {
        self.worker.as_ref()
    }

    pub(crate) fn value<T: 'static>(&self, place: &NestedScope) -> Option<Rc<T>> {
        self.places.get(place.index)?.get(&TypeId::of::<T>())?.clone().downcast().ok()
    }
}
