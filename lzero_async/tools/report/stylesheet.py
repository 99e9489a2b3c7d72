"""How the page looks: light and dark, wide, on a phone and printed. The colours of lines are told apart by the colour-blind."""

from __future__ import annotations

from typing import Final

STYLE: Final = """
:root{color-scheme:light dark;--page:#f6f7f9;--card:#fff;--text:#17202a;--soft:#55606e;--line:#dde2e8;--grid:#e8ecf0;
--accent:#0b66b3;--good:#0a7a4b;--warn:#9a5b00;--bad:#b3261e;--tint:#eef4fa;
--c0:#0072b2;--c1:#d55e00;--c2:#00846a;--c3:#a8518a;--c4:#b07d00;--c5:#3d8fc4;--c6:#6b4fa3;--c7:#5d6773;
--collect:#00846a;--train:#d55e00;--replay:#e0a100;--publish:#2b3f55;--eval:#8a5fb0;--other:#5a93c9;--wait:#cfd6de;
--failed:#b3261e;--cut:#a9d3c8;
--active:#0072b2;--on:#fff;--waiting:#e3a73a;--idle:#d3d9e0}
@media (prefers-color-scheme:dark){:root{--page:#0f141a;--card:#171e26;--text:#e6ebf0;--soft:#a3afbb;--line:#2b3540;
--grid:#242d37;
--accent:#6db8f2;--good:#55d19a;--warn:#f0b65a;--bad:#ff8a80;--tint:#1b2733;
--c0:#56aee8;--c1:#f58a4b;--c2:#3cc9a3;--c3:#dd90c2;--c4:#e8bb4a;--c5:#9bd0f2;--c6:#b8a0ea;--c7:#a7b1bc;
--collect:#2fb794;--train:#f07f3c;--replay:#e8bb4a;--publish:#b9c7d6;--eval:#b692dc;--other:#7fb4e3;--wait:#3a4652;
--failed:#ff8a80;--cut:#2c5a50;
--active:#4a9fdc;--on:#08121c;--waiting:#d99a2b;--idle:#36414d}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--page);color:var(--text);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif;
font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
main,header,footer{max-width:1080px;margin:0 auto;padding:0 20px}
header{padding-top:30px}
h1{font-size:26px;line-height:1.2;margin:0 0 6px;text-wrap:balance}
h2{font-size:18px;margin:0 0 12px;line-height:1.3}
h3{font-size:15px;margin:18px 0 8px}
p{margin:0 0 10px}
code{overflow-wrap:anywhere;font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
.verdict{font-size:16px;max-width:80ch}
.badge{display:inline-block;border-radius:99px;padding:1px 10px;font-size:13px;font-weight:600;
border:1px solid currentColor;
vertical-align:3px;margin-left:6px;white-space:nowrap}
.good{color:var(--good)}.warn{color:var(--warn)}.bad{color:var(--bad)}
.soft,.note{color:var(--soft)}.note{font-size:13.5px}
section{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:18px 20px;margin:16px 0}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(180px,1fr));gap:10px;margin:16px 0;padding:0}
.tiles div{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:10px 14px;min-width:0}
.tiles dt{color:var(--soft);font-size:13px}
.tiles dd{margin:0;font-size:22px;font-weight:650;line-height:1.25}
.tiles a{color:inherit;text-decoration-color:var(--accent)}
.tiles dd small{display:block;font-size:12.5px;font-weight:400;color:var(--soft)}
.finding{background:var(--tint);border-left:4px solid var(--accent);border-radius:6px;padding:10px 14px;margin:0 0 14px}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,400px),1fr));gap:20px}
.pair>*{min-width:0}
figure{margin:0;min-width:0}
figcaption{font-size:13.5px;font-weight:600;margin-bottom:8px;display:flex;flex-wrap:wrap;gap:2px 14px;
align-items:baseline}
.legend{display:flex;flex-wrap:wrap;gap:2px 12px;font-weight:400;color:var(--soft);font-size:12.5px}
.legend>span{display:inline-flex;align-items:center;gap:5px}
.key{display:inline-block;flex:none;width:16px;height:0;border-top:2.5px solid var(--k)}
.key.area{height:10px;border:0;background:var(--k);opacity:.28}.key.dashed{border-top-style:dashed}
.key.bound{border-top:2px dashed var(--soft)}
.key.box{width:11px;height:11px;border:0;border-radius:2px;background:var(--k)}
.plot{display:grid;grid-template-columns:max-content minmax(0,1fr);column-gap:8px}
.plot.plain{grid-template-columns:minmax(0,1fr)}
.plot.plain .pic,.plot.plain .xs,.plot.plain .xname{grid-column:1}
.ys{position:relative;color:var(--soft);font-size:12px;text-align:right;line-height:1}
.ys b{visibility:hidden;font-weight:400}
.ys span{position:absolute;right:0;transform:translateY(50%);white-space:nowrap}
.pic{position:relative;height:210px;border-bottom:1px solid var(--soft)}
.pic svg,.strip svg{display:block;width:100%;height:100%;overflow:visible}
.xs{grid-column:2;position:relative;height:20px;color:var(--soft);font-size:12px}
.xs span{position:absolute;top:3px;transform:translateX(-50%);white-space:nowrap}
.xs .left{transform:none}.xs .right{transform:translateX(-100%)}
.xname{grid-column:2;text-align:center;font-size:12px;color:var(--soft)}
.above span{position:absolute;transform:translateX(-50%);font-size:12px;line-height:1.3;white-space:nowrap}
path.line{fill:none;stroke:var(--k);stroke-width:2;vector-effect:non-scaling-stroke;stroke-linejoin:round;
stroke-linecap:round}
path.thin{stroke-width:1;opacity:.55}path.dashed{stroke-dasharray:6 4}
path.band{fill:var(--k);opacity:.16}
path.dot{fill:none;stroke:var(--k);stroke-width:6;stroke-linecap:round;vector-effect:non-scaling-stroke}
path.quiet{opacity:0}path.quiet:hover{opacity:1}
path.grid{fill:none;stroke:var(--grid);stroke-width:1;vector-effect:non-scaling-stroke}
path.mark{fill:none;stroke:var(--soft);stroke-width:1.5;stroke-dasharray:5 4;vector-effect:non-scaling-stroke}
rect.bar{fill:var(--active)}rect.beyond{fill:var(--bad)}
.c0{--k:var(--c0)}.c1{--k:var(--c1)}.c2{--k:var(--c2)}.c3{--k:var(--c3)}.c4{--k:var(--c4)}.c5{--k:var(--c5)}
.c6{--k:var(--c6)}
.c7{--k:var(--c7)}
.k-collect{--k:var(--collect)}.k-train{--k:var(--train)}.k-replay{--k:var(--replay)}.k-publish{--k:var(--publish)}
.k-eval{--k:var(--eval)}.k-other{--k:var(--other)}.k-wait{--k:var(--wait)}.k-failed{--k:var(--failed)}.k-cut{--k:var(--cut)}
.k-active{--k:var(--active)}.k-waiting{--k:var(--waiting)}.k-idle{--k:var(--idle)}
.fill{fill:var(--k)}
.role{display:grid;gap:2px 12px;align-items:center;font-size:13.5px;grid-template-areas:"name share more";
grid-template-columns:110px minmax(0,1fr) 240px;margin-bottom:7px}
.role .name{grid-area:name}.role .more{grid-area:more;color:var(--soft);font-size:12.5px;
text-align:right}
.share{grid-area:share;display:flex;height:24px;border-radius:5px;overflow:hidden;background:var(--idle)}
.share i{display:block;font-style:normal;font-weight:600;font-size:12px;line-height:24px;text-align:center;
overflow:hidden;
white-space:nowrap;background:var(--k)}
.share .k-active{color:var(--on)}.share .k-waiting{color:#1d1400}.share .k-idle{color:var(--text)}
.strips{display:grid;grid-template-columns:max-content minmax(0,1fr);gap:5px 10px;align-items:center;font-size:13px}
.strip{height:26px;background:var(--page);border-radius:4px;overflow:hidden}
.strip.low{height:18px}
.strips .xs{grid-column:2}
.scroll{overflow-x:auto;max-width:100%;border:1px solid var(--line);border-radius:8px;margin-bottom:12px}
.scroll.tall{max-height:430px;overflow-y:auto}.tall thead th{position:sticky;top:0}
.scroll:focus-visible,summary:focus-visible{outline:2px solid var(--accent);outline-offset:2px}
table{overflow-wrap:break-word;border-collapse:collapse;width:100%;font-size:13.5px}
th,td{padding:6px 12px;text-align:left;vertical-align:top;border-bottom:1px solid var(--line)}
tbody tr:last-child>*{border-bottom:0}
thead th{color:var(--soft);font-weight:600;white-space:nowrap;background:var(--tint)}
tbody th{font-weight:500}.tall td:last-child{width:75%}
.numbers td,.numbers thead th:not(:first-child){text-align:right;white-space:nowrap}
.numbers tbody th{position:sticky;left:0;background:var(--card)}.more span{white-space:nowrap}
td small{color:var(--soft);margin-left:8px;display:inline-block;min-width:48px}
details{margin-top:8px}
summary{cursor:pointer;font-weight:600;padding:6px 0}
.minis{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,215px),1fr));gap:14px 18px;margin-top:8px}
.mini{min-width:0;font-size:12.5px;display:flex;flex-direction:column}
.mini .pic{margin-top:auto}.mini b{font-weight:600}
.mini .pic{height:62px}.mini .range{color:var(--soft);display:flex;justify-content:space-between;gap:8px}
ul{margin:0 0 10px;padding-left:20px}
footer{color:var(--soft);font-size:13px;padding-bottom:40px}
@media (max-width:600px){main,header,footer{padding-left:12px;padding-right:12px}section{padding:14px 12px}
h1{font-size:22px}
.tiles{grid-template-columns:repeat(2,minmax(0,1fr));gap:8px}.tiles dd{font-size:19px}
.role{grid-template-columns:minmax(0,1fr) max-content;grid-template-areas:"name more" "share share"}.pic{height:180px}
.strips{font-size:12px;gap:5px 6px}.strips .name{max-width:84px}}
@media print{:root{--page:#fff}body{font-size:12px}main,header,footer{max-width:none;padding:0}
section,figure,.tiles div{break-inside:avoid}
section{border-color:#bbb}.scroll,.scroll.tall{overflow:visible;max-height:none}*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
"""
