"""The stylesheet: which panels are seen where, at which size of the terminal."""

from __future__ import annotations

CSS = """
#header { border: none; padding: 0; height: 4; background: $surface; }
.-vast #header { height: 3; }
.-gone #header, .-gone.-vast #header { height: 2; }
#gone { display: none; }
.-gone #gone { display: block; }
#tabs { background: $background; }
#keys { background: $surface; }
#body { height: 1fr; background: $background; }
#filter { display: none; height: 1; border: none; padding: 0 1; background: $panel; }
#filter.-shown { display: block; }
Pane { height: 1fr; }
Toned { background: $background; }

#above { height: 1fr; min-height: 8; }
#left { width: 1fr; }
#right { width: 44%; }
#loss, #near { height: 1fr; }
#network { height: 1fr; }
.-tall #network { height: 9; }
#near { display: none; }
.-tall #near { display: block; }
#events { height: 8; }
.-grand #events { height: 12; }
#stages-below { display: none; }
.-narrow #right { width: 36; }
.-narrow #stages-left, .-low #stages-left { display: none; }
.-narrow #stages-below, .-low #stages-below { display: block; }
.-narrow #near, .-low #network { display: none; }
.-narrow #machine { height: 1fr; }
.-low #events { height: 5; }

#swarm-head { height: 7; }
#stage-table { height: 1fr; }
#legend { height: 1; border: none; padding: 0 2; }
#seats { height: 6; }
#preferences { height: 3fr; }
#decisions { height: 2fr; }
#recovery-head { height: 4; }
#faults { height: 1fr; }
#story { height: 50%; }
.-low #story { display: none; }
#limits { height: 9; }
#setting-table { height: 1fr; }

Toast { background: $panel; color: $foreground; }

.-ascii Panel { border: ascii $frame; }
.-ascii Listing { border: ascii $frame; }
.-ascii Listing:focus { border: ascii $primary; }
.-ascii Dialog #frame > Panel { border: ascii $primary; }
.-ascii #header { border: none; }
.-ascii #legend { border: none; }
"""
